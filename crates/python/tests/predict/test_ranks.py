"""`millpond predict` of programs that are one of several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_predict import JOBS, PYTHON, of, predict, pytestmark, rank_of_program

__all__ = ["pytestmark"]

#: What was measured of the job with two H100s, in bytes.
DDP_BYTES = 825.7 * (1 << 20)


def test_ranks_are_predicted_without_the_others(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    done = predict("--ranks", "2", "--json", str(file), "--", PYTHON, str(JOBS / "ddp.py"))
    assert done.returncode == 0, done.stderr
    peaks = [rank["peak_requested"] for rank in json.loads(file.read_text())["ranks"]]
    assert peaks[0] == peaks[1] and abs(peaks[0] / DDP_BYTES - 1) < 0.01


def test_a_rank_by_itself_needs_no_option(tmp_path: Path) -> None:
    program = f"""
import os, runpy, torch
os.environ.update(LOCAL_RANK="0", WORLD_SIZE="1")
runpy.run_path({str(JOBS / "ddp.py")!r})
"""
    assert abs(rank_of_program(tmp_path, program)["peak_requested"] / DDP_BYTES - 1) < 0.01


BEGINS = "import torch\ntorch.distributed.init_process_group({given})\ntorch.distributed.all_reduce(torch.ones(8).cuda())\n"


@pytest.mark.parametrize("backend", ["'nccl'", "'cpu:gloo,cuda:nccl'", "None"])
def test_one_rank_may_be_named_by_arguments(backend: str) -> None:
    done = of(BEGINS.format(given=f"{backend}, 'tcp://127.0.0.1:1', rank=0, world_size=1"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("given", "number"), [("'nccl', 'tcp://127.0.0.1:1', rank=0, world_size=4", "4"), ("'nccl'", "N")])
def test_ranks_that_nobody_began_are_told_the_option(given: str, number: str) -> None:
    done = of(BEGINS.format(given=given))
    assert done.returncode == 2, done.stderr
    assert f"<string>:2: init_process_group() is for ranks that nobody began: name --ranks {number}, and" in done.stderr


def test_a_launcher_in_pytorch_is_told_the_option() -> None:
    done = predict("--", PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", str(JOBS / "ddp.py"))
    assert done.returncode == 2 and "name --ranks N, and the script itself after --" in done.stderr, done.stderr


#: Each rank has a layer of its own size.
SPAWNS = """
import torch
import torch.multiprocessing as mp

def work(rank, size):
    torch.distributed.init_process_group("nccl", "tcp://127.0.0.1:1", rank=rank, world_size=size)
    torch.cuda.set_device(rank)
    layer = torch.nn.Linear(1024, 1024 * (1 + rank), bias=False).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        layer(torch.ones(64, 1024, device=rank)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    {begin}
"""


@pytest.mark.parametrize("begin", ["mp.spawn(work, (2,), nprocs=2)", "mp.start_processes(work, (2,), 2, join=False).join()"])
def test_ranks_that_a_program_spawns_are_predicted_once(tmp_path: Path, begin: str) -> None:
    script, file = tmp_path / "spawns.py", tmp_path / "p.json"
    script.write_text(SPAWNS.format(begin=begin))
    done = predict("--ranks", "2", "--json", str(file), "--", PYTHON, str(script))
    assert done.returncode == 0, done.stderr
    ranks = json.loads(file.read_text())["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    # Both the weights and the gradients are twice as large.
    assert ranks[1]["peak_requested"] - ranks[0]["peak_requested"] >= 8 << 20


@pytest.mark.parametrize(
    "begin",
    ["mp.spawn(work, (3,), nprocs=3)", "[process.start() for process in [mp.get_context('spawn').Process(target=work, args=(0, 2))]]"],
)
def test_ranks_that_a_program_begins_otherwise_are_refused(tmp_path: Path, begin: str) -> None:
    script = tmp_path / "begins.py"
    script.write_text(SPAWNS.format(begin=begin))
    done = predict("--ranks", "2", "--", PYTHON, str(script))
    assert done.returncode == 2, done.stderr
    assert "begins the program once for each of 2 ranks already: let it take RANK" in done.stderr


def test_ranks_that_a_program_begins_by_their_environment_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "begins.py"
    script.write_text(
        """
import os, subprocess, sys
if len(sys.argv) > 1:
    import torch
    torch.distributed.init_process_group("nccl")
    torch.ones(8, device="cuda")
else:
    for rank in "01":
        subprocess.run([sys.executable, __file__, "rank"], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank}, check=True)
"""
    )
    done = predict("--ranks", "2", "--", PYTHON, str(script))
    assert done.returncode == 2, done.stderr
    assert "begins.py begins rank 1 itself, and --ranks begins the program once for each rank" in done.stderr
