"""Pools that sleep and wake, and the tags of PyTorch's allocations, on the CPU as a device."""

from __future__ import annotations

import subprocess
import sys

import millpond
import pytest

MIB = 1 << 20


def test_a_pool_and_its_tags_sleep_and_wake() -> None:
    pool = millpond.Pool("host", name="engine", capacity=256 * MIB)
    weights = pool.tagged("weights")
    assert (weights.name, pool.tags) == ("engine/weights", ["weights"])
    block = weights.allocate(4 * MIB)
    with memoryview(block) as view:
        view[:] = b"7" * (4 * MIB)
    assert weights.sleep() == 4 * MIB
    assert weights.is_asleep and not pool.is_asleep
    assert (weights.stats().asleep, weights.stats().reserved.current) == (4 * MIB, 0)
    for use in (lambda: weights.allocate(1), lambda: memoryview(block)):
        with pytest.raises(millpond.MisuseError, match="wake it first"):
            use()
    pool.sleep("nothing")  # what sleeps keeps its bytes
    assert pool.is_asleep
    pool.wake()
    assert not weights.is_asleep
    with memoryview(block) as view:
        assert bytes(view) == b"7" * (4 * MIB)
    assert pool.trim_staging() == 4 * MIB
    with pytest.raises(ValueError, match="pass 'pinned' or 'nothing'"):
        pool.sleep("everything")
    with pytest.raises(millpond.MisuseError, match="cannot sleep"):
        millpond.Pool("host", memory="pinned").sleep()


def test_pytorchs_allocations_have_the_tag_of_their_thread() -> None:
    program = """
import ctypes, threading, millpond
import millpond.torch as mt
from millpond import _millpond
pool = millpond.Pool("host", name="gpu")
_millpond.stand_in(0, pool)
pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
hooks = dict(_millpond.torch_hooks()[1])
alloc = ctypes.CFUNCTYPE(pointer, size, number, pointer)(hooks["alloc"])
free = ctypes.CFUNCTYPE(None, pointer, size, number, pointer)(hooks["free"])
record = ctypes.CFUNCTYPE(None, pointer, pointer)(hooks["set_record_stream_fn"])
BYTES = 3 << 20

plain = alloc(BYTES, 0, None)
with mt.tag("weights"):
    tagged = alloc(BYTES, 0, None)
    with mt.tag("cache"):
        cached = alloc(BYTES, 0, None)
    also = alloc(BYTES, 0, None)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(alloc(BYTES, 0, None)))
    thread.start(); thread.join()
live = lambda pool: pool.stats().blocks.current
assert (live(pool), live(pool.tagged("weights")), live(pool.tagged("cache"))) == (2, 2, 1)
other = pool.create_stream()
record(tagged, other.handle)
ctypes.memset(tagged, 5, BYTES)
from millpond._torch_figures import nested_figures
assert nested_figures(0)["allocated_bytes"]["all"]["current"] == 5 * BYTES
assert nested_figures(0)["allocation"]["all"]["allocated"] == 5
assert mt.sleep("weights") >= 2 * BYTES
ctypes.memset(plain, 6, BYTES)
mt.wake("weights")
assert ctypes.string_at(tagged, BYTES) == bytes([5]) * BYTES
mt.sleep(keep="nothing")
assert pool.is_asleep and pool.tagged("cache").is_asleep
free(cached, BYTES, 0, None)
mt.wake()
for block in (plain, tagged, also, *elsewhere):
    free(block, BYTES, 0, None)
assert [live(each) for each in (pool, *map(pool.tagged, pool.tags))] == [0, 0, 0]
assert millpond.last_error() is None, millpond.last_error()
try:
    mt.sleep("wieghts")
except ValueError as error:
    assert "the tags are: 'cache', 'weights'" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tag_is_evicted_and_restored() -> None:
    pool = millpond.Pool("host", name="job", capacity=256 * MIB)
    optimizer = pool.tagged("optimizer")
    block = optimizer.allocate(4 * MIB)
    with memoryview(block) as view:
        view[:] = b"7" * (4 * MIB)
    assert optimizer.evict() == 4 * MIB
    assert optimizer.is_evicted and not optimizer.is_asleep
    assert [each.stats().reserved.current for each in (pool, optimizer)] == [4 * MIB, 0]
    assert optimizer.stats().asleep == 4 * MIB
    for use in (lambda: optimizer.allocate(1), lambda: memoryview(block)):
        with pytest.raises(millpond.MisuseError, match="restore it first"):
            use()
    with pool.allocate(4 * MIB) as other, memoryview(other) as view:
        view[:] = b"9" * (4 * MIB)
    assert optimizer.restore_free() <= optimizer.stats().asleep
    optimizer.restore_ahead()
    assert optimizer.restore_free() == 0
    optimizer.restore()
    assert not optimizer.is_evicted
    with memoryview(block) as view:
        assert bytes(view) == b"7" * (4 * MIB)
    with pytest.raises(millpond.MisuseError, match="no part of another pool"):
        pool.evict()
