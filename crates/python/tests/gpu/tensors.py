"""What the tests of PyTorch's memory share: tensors of so many bytes, graphs, and what a snapshot says of both.

The tests of test_torch_pools.py, test_torch_history.py and test_torch_limits.py hold for PyTorch's own allocator, too.
``MILLPOND_TEST_ALLOCATOR=native`` runs them with it, which shows that they ask for what PyTorch does.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

#: What pytest is to run the tests with: ``native-interface``, or ``native`` for PyTorch's own allocator.
ALLOCATOR = os.environ.get("MILLPOND_TEST_ALLOCATOR", "native-interface")

#: Of PyTorch, such as ``(2, 11)``.
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])

#: Cycles of the GPU's clock that outlast what the host does meanwhile: about 0.1 s.
WHILE = 200_000_000


def empty(size: int) -> Any:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def filled(mib: int, value: int = 1) -> Any:
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")


def holds(tensor: Any, value: float) -> bool:
    """Whether all of a tensor has this value. It takes no memory of the tensor's size."""
    return bool(tensor.min() == value) and bool(tensor.max() == value)


def segments_of(pool: Any) -> list[Any]:
    """The segments of one of PyTorch's pools, by its name."""
    return [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == tuple(pool)]


def live_in(segments: list[Any]) -> list[int]:
    """The addresses of live blocks."""
    return [block["address"] for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]


def addresses_of(tensors: Any) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors}


def captured(function: Callable[..., Any], *inputs: Any, pool: Any = None) -> tuple[Any, Any]:
    """A graph of one call, which was made once before; and what the call returned while it was captured."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        outputs = function(*inputs)
    return graph, outputs


@contextmanager
def limited(size: int) -> Iterator[None]:
    """PyTorch may hold so many bytes more than it does, if it gives back what it caches."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + size) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def history(**arguments: Any) -> Iterator[None]:
    """PyTorch records what its memory does."""
    torch.cuda.memory._record_memory_history(**arguments)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
