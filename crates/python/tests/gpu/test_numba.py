"""Numba with millpond as its memory manager."""

from __future__ import annotations

import gc
from typing import Any

import millpond
import pytest

numba = pytest.importorskip("numba")
numpy = pytest.importorskip("numpy")
if not hasattr(numpy, "row_stack") and tuple(map(int, numba.__version__.split(".")[:2])) < (0, 69):
    pytest.skip("this Numba asks of NumPy what it has no more", allow_module_level=True)
pytestmark = pytest.mark.gpu


def test_arrays_come_from_the_pool_and_go_back() -> None:
    millpond.numba.enable()
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def add(array: Any, value: int) -> None:
        at = cuda.grid(1)
        if at < array.size:
            array[at] += value

    streams = [cuda.stream() for _ in range(4)]
    for step in range(40):
        array = cuda.to_device(numpy.full(100_000, step))
        stream = streams[step % 4]
        add[400, 256, stream](array, 5)
        assert millpond.stats(0).requested.current >= 800_000
        assert (array.copy_to_host(stream=stream) == step + 5).all()
        del array
    gc.collect()
    assert millpond.stats(0).requested.current < 800_000
    assert cuda.current_context().get_memory_info().total > 0
    millpond.pool(0).check()
