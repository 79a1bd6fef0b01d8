"""`millpond predict` with PyTorch, against what the same jobs did on a GPU.

Needs a CUDA build of PyTorch, and no GPU. Where it is missing, these tests are skipped. `MILLPOND_PREDICT_PYTHON` names a Python that
has it, if the tests' own has not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import millpond
import pytest

JOBS = Path(__file__).parent / "jobs"

#: Bytes that each job requested at most on an H100, with PyTorch 2.11: docs/lab/predict.md.
TRUTHS = {
    "mlp": 797_918_920,
    "lora": 6_902_542_536,
    "unet": 2_063_119_055,
    "vgg": 2_970_760_151,
    "rnn": 1_360_110_920,
    "gru": 1_686_508_036,
}

#: SGD without momentum has no state.
STATELESS = {"rnn"}

PYTHON = os.environ.get("MILLPOND_PREDICT_PYTHON", sys.executable)


def has_torch() -> bool:
    asked = "import torch, sys; sys.exit(not torch.backends.cuda.is_built())"
    return subprocess.run([PYTHON, "-c", asked], capture_output=True, check=False).returncode == 0


def has_card() -> bool:
    beside = Path(millpond.__file__).parent / "_run" / "libmillpond_card.so"
    return "MILLPOND_CARD_LIBRARY" in os.environ or beside.exists()


pytestmark = [
    pytest.mark.skipif(not has_torch(), reason="no PyTorch with CUDA: name a Python that has it in MILLPOND_PREDICT_PYTHON"),
    pytest.mark.skipif(not has_card(), reason="the package has no libmillpond_card.so: scripts/run-library builds it"),
]


def predict(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millpond", "predict", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def of(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return predict(*arguments, "--", PYTHON, "-c", program)


@pytest.mark.parametrize("job", TRUTHS)
def test_a_job_requests_what_it_did_on_a_gpu(job: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    done = predict("--json", str(file), "--", PYTHON, str(JOBS / f"{job}.py"))
    assert done.returncode == 0, done.stderr
    rank = json.loads(file.read_text())["ranks"][0]
    assert 0.98 <= rank["peak_requested"] / TRUTHS[job] <= 1.03
    kinds = {row["name"]: row["bytes"] for row in rank["kinds"]}
    assert {"activation", "parameter", "workspace"} <= kinds.keys()
    assert ("optimizer state" in kinds) == (job not in STATELESS)
    assert sum(kinds.values()) == rank["peak_requested"]


TRAINS = """
import torch
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    loss = model(torch.randn(8, 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {line}
raise SystemExit("not reached")
"""


def test_a_loss_and_a_count_can_be_printed() -> None:
    done = of(TRAINS.format(line="print(f'{loss.item():.2f}', f'{(loss > 0).sum().item() / 8:.3f}')"))
    assert done.returncode == 0, done.stderr
    assert "1.00 0.000" in done.stderr and "a value of the card is answered by 1" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("if loss > 3: break", "<string>:10: a branch on a tensor"),
        ("if (loss > 0).sum().item() > 3: break", "<string>:10: a branch on item()"),
        ("model.weight[model.weight > 0]", "<string>:10: a mask or nonzero()"),
        ("torch.arange(3, device='cuda').tolist()", "<string>:10: tolist() of whole numbers"),
    ],
)
def test_what_needs_a_value_is_refused_with_its_line(line: str, said: str) -> None:
    done = of(TRAINS.format(line=line))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"millpond: {said}"), done.stderr


def test_an_option_answers_what_needs_a_value() -> None:
    line = "print(model.weight[model.weight > 0].shape, 'more' if loss > 3 else 'less')"
    done = of(TRAINS.format(line=line), "--item", "4", "--selected", "0.25")
    assert done.returncode == 0, done.stderr
    assert "torch.Size([262144]) more" in done.stderr


def test_a_library_that_asks_of_all_values_is_told_yes(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "asks.py").write_text("def is_whole(mask):\n    return bool((mask == 0).all())\n")
    program = f"import sys, torch; sys.path.append({str(library)!r}); import asks; print(asks.is_whole(torch.ones(4).cuda()))"
    done = of(program)
    assert done.returncode == 0, done.stderr
    assert "True" in done.stderr


def test_ranks_are_predicted_without_the_others(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    done = predict("--ranks", "2", "--json", str(file), "--", PYTHON, str(JOBS / "ddp.py"))
    assert done.returncode == 0, done.stderr
    peaks = [rank["peak_requested"] for rank in json.loads(file.read_text())["ranks"]]
    # 825.7 MiB were measured on two H100s.
    assert peaks[0] == peaks[1] and abs(peaks[0] / (825.7 * (1 << 20)) - 1) < 0.01


def test_a_program_without_an_optimizer_of_pytorch_ends() -> None:
    program = """
import torch
weight = torch.ones(100, 100, device="cuda", requires_grad=True)
while True:
    (torch.ones(8, 100, device="cuda") @ weight).sum().backward()
    weight.grad = None
"""
    done = of(program, "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert "ended after 32 backwards" in done.stdout


def test_the_program_sees_the_card_that_was_named() -> None:
    program = "import torch; torch.ones(1).cuda(); print(torch.cuda.get_device_properties(0))"
    done = of(program, "--card", "RTX 4090")
    assert "name='RTX 4090', major=8, minor=9, total_memory=24576MB, multi_processor_count=128" in done.stderr


def test_a_program_that_fails_is_no_prediction() -> None:
    done = of("import torch; torch.ones(3, device='cuda') @ torch.ones(4, device='cuda')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("; nothing is predicted")
