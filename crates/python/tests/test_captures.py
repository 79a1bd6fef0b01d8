"""Memory for what is captured into CUDA graphs. The CPU captures nothing: what is shown here is whose memory is used."""

from __future__ import annotations

import gc

import millpond
import pytest

MIB = 1 << 20


@pytest.fixture
def pool() -> millpond.Pool:
    return millpond.Pool("host", name="captured")


def test_allocations_of_a_stream_come_from_the_captures_memory(pool: millpond.Pool) -> None:
    stream, other = pool.create_stream(), pool.create_stream()
    memory = pool.capture_pool()
    with memory.begin(stream):
        scratch, elsewhere = pool.allocate(MIB, stream), pool.allocate(MIB, other)
        assert memory.used == MIB and memory.reserved >= MIB
    address = scratch.ptr
    after = pool.allocate(MIB, stream)
    scratch.free()
    assert memory.used == 0 and memory.reserved >= MIB
    # Nobody else gets it while the memory is kept.
    stream.synchronize()
    blocks = [pool.allocate(MIB, stream) for _ in range(8)]
    assert address not in {block.ptr for block in [after, elsewhere, *blocks]}
    with memory.begin(stream):
        assert pool.allocate(MIB, stream).ptr == address
    reserved = pool.stats().reserved.current
    del memory
    gc.collect()
    pool.synchronize()
    assert pool.stats().reserved.current < reserved
    pool.check()


def test_one_capture_at_a_time_and_an_end_by_hand(pool: millpond.Pool) -> None:
    memory = pool.capture_pool()
    stream = pool.create_stream()
    first = memory.begin(stream)
    with pytest.raises(millpond.Error, match=f"^this {type(memory).__name__} of pool .* is already in a capture"):
        memory.begin(stream)
    first.end()
    first.end()
    second = memory.begin(stream.handle)
    del second
    gc.collect()
    with memory.begin():
        assert pool.allocate(1000).size == 1000
    pool.check()
