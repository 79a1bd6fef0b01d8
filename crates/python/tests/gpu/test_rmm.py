"""RMM with millpond as its resource."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import millpond
import pytest

rmm = pytest.importorskip("rmm")
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = millpond.stats(0).requested.current
    yield
    gc.collect()
    assert millpond.stats(0).requested.current == before
    millpond.pool(0).check()


def test_buffers_come_from_the_pool_and_go_back() -> None:
    millpond.rmm.enable(0)
    before = millpond.stats(0).requested.current
    buffer = rmm.DeviceBuffer(size=1 << 20)
    assert millpond.stats(0).requested.current == before + (1 << 20)
    assert buffer.ptr and buffer.size == 1 << 20
    del buffer
    assert millpond.stats(0).requested.current == before


def test_the_resource_calls_no_python() -> None:
    assert not isinstance(millpond.rmm.resource(0), rmm.mr.CallbackMemoryResource)


def test_bytes_are_kept() -> None:
    millpond.rmm.enable(0)
    for size in (1, 1000, 1 << 20, 5 << 20):
        bytes_ = bytes(n % 251 for n in range(size))
        buffer = rmm.DeviceBuffer.to_device(bytes_)
        other = rmm.DeviceBuffer.to_device(bytes_[::-1])
        assert buffer.copy_to_host().tobytes() == bytes_
        assert other.copy_to_host().tobytes() == bytes_[::-1]


def test_resources_over_a_collected_one_still_allocate() -> None:
    before = millpond.stats(0).requested.current
    resources: list[Any] = []
    for _ in range(20):
        base = millpond.rmm.resource(0)
        resources += [
            rmm.mr.StatisticsResourceAdaptor(base),
            rmm.mr.BinningMemoryResource(base, 18, 19),
            rmm.mr.FailureCallbackResourceAdaptor(base, lambda _size: False),
        ]
        del base
        gc.collect()
    for resource in resources:
        buffers = [rmm.DeviceBuffer(size=size, mr=resource) for size in (1, 1000, 1 << 20)]
        assert all(buffer.ptr for buffer in buffers)
        del buffers
    del resources
    gc.collect()
    assert millpond.stats(0).requested.current == before


def test_streams_that_are_destroyed_do_no_harm() -> None:
    from rmm.pylibrmm.stream import Stream

    millpond.rmm.enable(0)
    for size in (1000, 1 << 20, 1000, 3 << 20):
        stream = Stream()
        buffer = rmm.DeviceBuffer(size=size, stream=stream)
        stream.synchronize()
        del buffer, stream
        gc.collect()
    # What lay on them is used again on another stream.
    assert rmm.DeviceBuffer(size=1 << 20).ptr


def test_streams_of_a_pool_are_registered_and_pair_on_many_threads() -> None:
    from rmm.pylibrmm.cuda_stream_pool import CudaStreamPool

    millpond.rmm.enable(0)
    pool = CudaStreamPool(4)
    millpond.rmm.register(pool, 0)

    def work(number: int) -> None:
        stream = pool.get_stream(number)
        for size in range(512, 200_000, 1001):
            buffer = rmm.DeviceBuffer(size=size, stream=stream)
            assert buffer.ptr % 256 == 0

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    work(0)
    hits, allocations = millpond.stats(0).hits, millpond.stats(0).allocations
    work(0)
    assert millpond.stats(0).hits - hits == millpond.stats(0).allocations - allocations


def test_out_of_memory_is_a_memory_error_and_callbacks_are_asked() -> None:
    asked: list[int] = []

    def spill(size: int) -> bool:
        asked.append(size)
        return False

    resource = rmm.mr.FailureCallbackResourceAdaptor(millpond.rmm.resource(0), spill)
    with pytest.raises(MemoryError, match="out_of_memory"):
        rmm.DeviceBuffer(size=1 << 50, mr=resource)
    assert asked == [1 << 50]


def test_enable_is_for_all_gpus_and_uses_none() -> None:
    program = """
import millpond, rmm
from cuda.bindings import driver
millpond.rmm.enable()
for gpu in range(rmm._cuda.gpu.getDeviceCount()):
    assert type(rmm.mr.get_per_device_resource(gpu)) is type(millpond.rmm.resource(gpu))
    state = driver.cuDevicePrimaryCtxGetState(gpu)
    assert not state[2], f"GPU {gpu} has a context: {state}"
assert not millpond._millpond.devices_in_use()
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
