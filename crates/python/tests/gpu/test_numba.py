"""Numba with millpond as its memory manager."""

from __future__ import annotations

import gc
import multiprocessing
from multiprocessing.connection import Connection
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


def test_a_block_is_an_array_in_place() -> None:
    from numba import cuda

    pool = millpond.pool(0)
    block = pool.allocate(8000)
    array = cuda.as_cuda_array(block).view(numpy.int64)
    array.copy_to_device(numpy.arange(1000))
    assert array.device_ctypes_pointer.value == block.ptr
    assert (array.copy_to_host() == numpy.arange(1000)).all()
    del array
    gc.collect()
    block.free()


def opens(pipe: Connection) -> None:
    millpond.numba.enable()
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def double(array: Any) -> None:
        at = cuda.grid(1)
        if at < array.size:
            array[at] *= 2

    for handle in iter(pipe.recv, None):
        with handle as array:
            found = array.copy_to_host()
            double[(array.size + 255) // 256, 256](array)
            cuda.synchronize()
            pipe.send(found)
            assert pipe.recv() == "freed"
            pipe.send(array.copy_to_host())
            del array
    pipe.send(millpond.stats(0).requested.current)


def test_an_ipc_handle_opens_an_array_in_another_process() -> None:
    millpond.numba.enable()
    from numba import cuda

    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=opens, args=(there,))
    other.start()
    values = numpy.arange(100_000)
    for part in (slice(None), slice(10, 5000)):
        array = cuda.to_device(values)
        expected = values.copy()
        cuda.synchronize()
        here.send(array[part].get_ipc_handle())
        assert (here.recv() == expected[part]).all()
        expected[part] *= 2
        assert (array.copy_to_host() == expected).all()
        del array
        gc.collect()
        here.send("freed")
        assert (here.recv() == expected[part]).all()
    here.send(None)
    assert here.recv() == 0
    other.join(60)
    assert other.exitcode == 0
    millpond.pool(0).synchronize()
    millpond.pool(0).check()
