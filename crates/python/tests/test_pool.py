"""Pools on the CPU as a device: real memory, streams and events, no GPU."""

from __future__ import annotations

import gc
import threading
from typing import Any

import millpond
import pytest

MIB = 1 << 20


@pytest.fixture
def pool() -> millpond.Pool:
    return millpond.Pool("host", name="tested")


def test_a_block_is_freed_when_it_is_dropped(pool: millpond.Pool) -> None:
    block = pool.allocate(3 * MIB)
    assert block.ptr % 512 == 0 and block.size == len(block) == 3 * MIB and int(block) == block.ptr
    assert pool.stats().requested.current == 3 * MIB
    del block
    gc.collect()
    assert pool.stats().blocks.current == 0
    assert pool.stats().blocks.high == 1
    pool.check()


def test_a_block_that_is_freed_twice_says_so(pool: millpond.Pool) -> None:
    block = pool.allocate(100)
    block.free()
    assert block.freed
    with pytest.raises(millpond.MisuseError, match="freed already"):
        block.free()


def test_a_with_statement_frees_its_block(pool: millpond.Pool) -> None:
    with pool.allocate(MIB) as block:
        assert not block.freed
    assert block.freed
    with pool.allocate(MIB) as block:
        block.free()


def test_memory_is_found_ready_the_second_time(pool: millpond.Pool) -> None:
    for _ in range(10):
        pool.allocate(5 * MIB).free()
    figures = pool.stats()
    assert (figures.allocations, figures.hits, figures.misses, figures.frees) == (10, 9, 1, 10)
    assert figures.reserved.current == 6 * MIB
    assert figures.cached == 6 * MIB
    assert figures.calls.create == figures.calls.map > 0


def test_a_freed_block_is_not_the_next_at_its_address(pool: millpond.Pool) -> None:
    stream = pool.create_stream()
    block = pool.allocate(1000, stream)
    block.free()
    with pool.allocate(1000, stream) as successor:
        assert successor.ptr == block.ptr
        with pytest.raises(millpond.MisuseError, match="freed already"):
            block.record_use(stream)
    with pool.allocate(0, stream) as nothing:
        nothing.record_use(stream)


def test_addresses_can_be_kept_by_the_caller(pool: millpond.Pool) -> None:
    address = pool.allocate_address(1000)
    pool.free_address(address)
    with pytest.raises(millpond.MisuseError, match="was freed already"):
        pool.free_address(address)
    with pytest.raises(millpond.MisuseError, match="was not allocated by"):
        pool.free_address(0x1234)
    other = millpond.Pool("host", name="other")
    with pytest.raises(millpond.MisuseError, match="belongs to pool 'other'"):
        pool.free_address(other.allocate_address(1000))


def test_no_bytes_are_the_null_address(pool: millpond.Pool) -> None:
    assert pool.allocate(0).ptr == 0
    assert pool.allocate_address(0) == 0
    pool.free_address(0)


def test_alignment_is_kept_or_refused(pool: millpond.Pool) -> None:
    assert pool.allocate(100, align=64 * 1024).ptr % (64 * 1024) == 0
    with pytest.raises(ValueError, match="the alignment is 3 bytes: use a power of two"):
        pool.allocate(100, align=3)


def test_out_of_memory_tells_what_would_help() -> None:
    pool = millpond.Pool("host", name="small", hard_limit=8 * MIB)
    kept = pool.allocate(6 * MIB)
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        pool.allocate(4 * MIB)
    message = str(caught.value)
    assert "4.00 MiB requested, but hard_limit is 8.00 MiB: free" in message
    assert "6.00 MiB live in 1 block," in message
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value, millpond.Error)
    assert pool.stats().out_of_memory == 1
    kept.free()
    pool.allocate(8 * MIB)


def test_more_than_can_be_addressed_is_an_overflow(pool: millpond.Pool) -> None:
    with pytest.raises(OverflowError, match="check how the size is computed"):
        pool.allocate((1 << 62) + 1)


def test_trim_gives_back_what_is_free(pool: millpond.Pool) -> None:
    pool.allocate(64 * MIB).free()
    pool.synchronize()
    assert pool.trim(keep=1 << 40) == 0
    assert pool.trim() == 64 * MIB
    assert pool.stats().reserved.current == 0
    pool.reset_peak()
    assert pool.stats().reserved.high == 0


def test_memory_passes_between_streams_in_order(pool: millpond.Pool) -> None:
    first, second = pool.create_stream(), pool.create_stream()
    block = pool.allocate(2 * MIB, first)
    block.record_use(second)
    address = block.ptr
    block.free()
    second.wait_for(first)
    second.synchronize()
    assert first.idle and second.idle
    assert pool.allocate(2 * MIB, second).ptr == address
    pool.check()


class _Wraps:
    """Another library's stream."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class _Protocol:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


def test_streams_of_other_libraries_are_taken_and_kept(pool: millpond.Pool) -> None:
    stream = pool.create_stream()
    handle = stream.handle
    others: list[Any] = [handle, _Wraps(cuda_stream=handle), _Wraps(ptr=handle), _Protocol(handle), stream]
    for other in others:
        pool.allocate(MIB, other).free()
    assert stream.__cuda_stream__() == (0, handle)
    with pytest.raises(TypeError, match="__cuda_stream__"):
        pool.allocate(MIB, "a stream")  # type: ignore[arg-type]


def test_a_stream_of_another_device_is_refused(pool: millpond.Pool) -> None:
    stream = millpond.Pool("host", capacity=64 * MIB).create_stream()
    with pytest.raises(millpond.MisuseError, match="belongs to another device"):
        pool.allocate(MIB, stream)


def test_threads_allocate_at_once(pool: millpond.Pool) -> None:
    def work() -> None:
        stream = pool.create_stream()
        for size in range(1, 300):
            blocks = [pool.allocate(size * 1000, stream) for _ in range(3)]
            assert len({block.ptr for block in blocks}) == 3

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().allocations == 8 * 299 * 3
    assert pool.stats().blocks.current == 0
    pool.check()


def test_a_destroyed_pool_allocates_no_more(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    with pytest.raises(millpond.MisuseError, match="was destroyed with live blocks"):
        pool.destroy()
    with pytest.raises(millpond.MisuseError, match="build another pool"):
        pool.allocate(MIB)
    block.free()


def test_a_simulated_device_has_no_memory_and_any_size() -> None:
    pool = millpond.Pool("sim", capacity=1 << 40)
    block = pool.allocate(1 << 39)
    assert pool.memory_info() == (1 << 39, 1 << 40)
    assert (pool.device, pool.name) == ("sim", "pool")
    del block


def test_devices_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="no device is called 'tpu': expected cuda, cuda:N, host or sim"):
        millpond.Pool("tpu")
    with pytest.raises(TypeError, match="a GPU's number"):
        millpond.Pool(1.5)  # type: ignore[arg-type]
    with pytest.raises(millpond.DeviceError):
        millpond.Pool("cuda:63")
    with pytest.raises(millpond.DeviceError):
        millpond.Pool(-1)
    with pytest.raises(ValueError, match="the memory of a GPU is fixed"):
        millpond.Pool("cuda", capacity=1)


def test_what_is_printed_names_pool_and_figures(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    assert repr(pool) == "<millpond.Pool 'tested' of host>"
    assert repr(block) == f"<millpond.Block of 1048576 bytes at {block.ptr:#x}>"
    assert "reserved=2097152" in repr(pool.stats())
    assert repr(pool.stats().reserved) == "Level(current=2097152, high=2097152)"
    assert pool.stats().reserved == pool.stats().reserved
