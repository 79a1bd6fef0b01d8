"""PyTorch's memory sleeps and wakes, by tag and as a whole: tensors keep their bytes, and graphs can be replayed."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

PROGRAM = """
import millpond.torch as mt
mt.enable(backend=BACKEND)
import torch

with mt.tag("weights"):
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda().eval()
with mt.tag("cache"):
    cache = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
inputs = torch.randn(64, 2048, device="cuda")
with torch.no_grad():
    expected = model(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = model(inputs)
    graph.replay()
    assert torch.equal(outputs, expected)
    free = torch.cuda.mem_get_info()[0]
    before = torch.cuda.memory_reserved()
    lent = mt.sleep("weights") + mt.sleep("cache", keep="nothing")
    assert lent >= 8 * 2048 * 2048 * 4 + (64 << 20), lent
    assert torch.cuda.mem_get_info()[0] >= free + lent - (64 << 20)  # the driver takes a little for itself
    assert torch.cuda.memory_reserved() == before - lent
    other = torch.ones(100 << 20, dtype=torch.uint8, device="cuda")  # the rest works on
    assert other.sum().item() == 100 << 20
    del other
    mt.wake()
    graph.replay()
    assert torch.equal(outputs, expected) and torch.equal(model(inputs), expected)
    for _ in range(20):
        mt.sleep()
        mt.wake()
    graph.replay()
    assert torch.equal(outputs, expected) and torch.equal(model(inputs), expected)
    del cache
print(mt.backend())
"""


@pytest.mark.parametrize("backend", ["native-interface", "plug-in"])
def test_weights_and_graphs_survive_a_sleep(backend: str) -> None:
    program = PROGRAM.replace("BACKEND", repr(backend))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
