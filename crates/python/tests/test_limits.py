"""The table of `gpu/limits.py`, made with modules that stand for PyTorch, Millpond and the jobs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "gpu" / "limits.py"

#: The allocators differ as under a real limit: native has no room, expandable segments have after three retries.
TORCH = """
import os, sys
from types import SimpleNamespace as Names

__version__ = "9.9"
limit, peak, retries = None, 0, 0
GIB = 1 << 30
allocator = "native"

class OutOfMemoryError(RuntimeError):
    pass

if "millpond" in sys.modules:
    allocator = "millpond"
elif os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == "expandable_segments:True":
    allocator = "expandable"

def use(step):
    global peak, retries
    peak = 10 * GIB
    if limit and step == 3:
        assert abs(limit - 10.3 * GIB) < 1
        if allocator == "native":
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        if allocator == "expandable":
            retries += 3

def set_fraction(fraction):
    global limit
    limit = fraction * 100 * GIB

def stats():
    names = "requested_bytes.all.peak", "reserved_bytes.all.peak"
    return dict.fromkeys(names, peak) | {"num_alloc_retries": retries}

class Tensor:
    def __matmul__(self, other):
        return self
    def sum(self):
        return self
    def backward(self):
        pass

def randn(*shape, **settings):
    return Tensor()

def manual_seed(seed):
    pass

cuda = Names(
    get_device_properties=lambda number: Names(total_memory=100 * GIB, name="Fake GPU"),
    set_per_process_memory_fraction=set_fraction,
    synchronize=lambda: None,
    empty_cache=lambda: None,
    reset_peak_memory_stats=lambda: None,
    memory_stats=stats,
)
"""
MILLPOND = """
from types import SimpleNamespace
torch = SimpleNamespace(enable=lambda: None)
"""
RECORD = """
import time
import torch

def job():
    step = 0
    while True:
        step += 1
        torch.use(step)
        time.sleep(0.02)
        yield

def broken():
    raise ValueError("a mistake of the job's")
    yield

JOBS = {"gpt": job, "resnet": job, "experts": broken}
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(SCRIPT, tmp_path)
    for name, text in (("torch", TORCH), ("millpond", MILLPOND), ("record", RECORD)):
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, str(tmp_path / "limits.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_job_has_a_row(tmp_path: Path) -> None:
    done = run(tmp_path, "--seconds", "0.2", "gpt", "resnet")
    assert done.returncode == 0, done.stderr
    title, _, head, rule, *rows = done.stdout.splitlines()
    assert title.startswith("Fake GPU, PyTorch 9.9, ") and "limit 1.03 x requested" in title
    columns = [len(line.split("|")) for line in (head, rule, *rows)]
    assert len(set(columns)) == 1 and len(rows) == 2
    first = [cell.strip() for cell in rows[0].split("|")[1:-1]]
    assert first[:3] == ["GPT, varying length", "10.00 GiB", "10.30 GiB"]
    assert int(first[3]) >= 3
    assert first[4].endswith(" s, no retries")
    assert first[5] == "out of memory at step 3"
    assert first[6].endswith(" s, 3 retries")
    assert first[7].endswith(" s, no retries")
    assert "gpt, native: CUDA out of memory. Tried to allocate 1.00 GiB" in done.stderr


def test_a_job_that_fails_ends_it_with_its_message(tmp_path: Path) -> None:
    done = run(tmp_path, "experts")
    assert done.returncode == 1
    assert "a mistake of the job's" in done.stderr
    assert "limits: experts does not run without a limit: failed with status 1" in done.stderr


def test_an_unknown_job_is_named_with_those_there_are(tmp_path: Path) -> None:
    done = run(tmp_path, "chess")
    assert done.returncode == 2
    assert "no job 'chess'; there are gpt, experts, diffuse, resnet" in done.stderr
