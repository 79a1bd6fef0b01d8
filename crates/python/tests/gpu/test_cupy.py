"""CuPy with millpond as its allocator."""

from __future__ import annotations

import gc

import millpond
import pytest

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _enabled() -> None:
    millpond.cupy.enable()


def test_arrays_come_from_the_pool_and_go_back() -> None:
    before = millpond.stats(0).requested.current
    array = cupy.full((MIB,), 2.0, dtype=cupy.float32)
    assert millpond.stats(0).requested.current == before + 4 * MIB
    assert float(array.sum()) == 2 * MIB
    assert isinstance(array.data.mem, cupy.cuda.UnownedMemory)
    del array
    gc.collect()
    assert millpond.stats(0).requested.current == before
    assert cupy.empty(0).size == 0


def test_streams_that_are_gone_leave_their_arrays_alone() -> None:
    kept = []
    for step in range(50):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            kept.append((step, cupy.full((10_000,), step, dtype=cupy.int64)))
            cupy.full((20_000,), -1, dtype=cupy.int64)
        stream.synchronize()
        del stream
    gc.collect()
    assert all(int(array.sum()) == 10_000 * step for step, array in kept)
    del kept
    millpond.pool(0).check()


def test_out_of_memory_is_millponds() -> None:
    with pytest.raises(millpond.OutOfMemoryError, match="requested, but"):
        cupy.empty(1 << 42, dtype=cupy.uint8)


def test_pinned_memory_comes_from_the_pool_and_goes_back() -> None:
    numpy = pytest.importorskip("numpy")
    millpond.cupy.enable(pinned=True)
    try:
        pool = millpond.pool(0, memory="pinned")
        for turn in range(20):
            host = numpy.full(MIB, turn, dtype=numpy.int64)
            array = cupy.asarray(host)  # staged in pinned memory
            assert int(array.sum()) == turn * MIB
            back = cupy.cuda.alloc_pinned_memory(8 * MIB)
            assert pool.stats().requested.current >= 8 * MIB
            result = numpy.frombuffer(back, numpy.int64, MIB)
            array.get(out=result)
            assert (result == turn).all()
            del result, back
        cupy.cuda.Device(0).synchronize()
        cupy.cuda.alloc_pinned_memory(1)  # lets go of what CuPy watched
        gc.collect()
        assert pool.stats().requested.current <= 1
        pool.check()
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
