"""PyTorch under a guard: a tensor that another stream uses without ``record_stream`` is found, and a right program is left alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

PROGRAM = """
import sys
import millpond
millpond.torch.enable(guard="all,nan,count")
import torch

side = torch.cuda.Stream()

def step(recorded):
    tensor = torch.ones(3 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        seen = tensor * 2
        tensor.add_(1)
    if recorded:
        tensor.record_stream(side)
    del tensor
    torch.cuda.synchronize()
    return seen

step(True)  # what loads a kernel waits for the device
seen = step(sys.argv[1] == "recorded")
print(seen.isnan().any().item())
for _ in range(40):  # later blocks push it out of the quarantine
    torch.ones(4 << 20, device="cuda")
    torch.cuda.synchronize()
for text in millpond.pool(0).guard_findings():
    print(text)
"""


def run(word: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_record_stream_is_found_with_both_stacks() -> None:
    nan, _, findings = run("forgotten").partition("\n")
    assert nan == "True", "what the late kernel read is not a number"
    assert "written to a block of 12582912 bytes of pool" in findings and "after its free" in findings, findings
    allocated, _, freed = findings.partition("\n  freed ")
    assert "step (<string>" in allocated and "step (<string>" in freed, findings


def test_a_recorded_stream_is_no_finding() -> None:
    assert run("recorded").split() == ["False"]


def test_training_under_a_guard_has_no_finding() -> None:
    program = """
import millpond
millpond.torch.enable(guard="all,count")
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    loss = model(torch.randn(256, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(len(millpond.pool(0).guard_findings()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
