"""Pinned and managed memory: pools of it, blocks that the CPU uses in place, copies in stream order, prefetches."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import millpond
import pytest
from millpond import _millpond

np: Any = pytest.importorskip("numpy")
MIB = 1 << 20


@pytest.fixture
def device() -> millpond.Pool:
    return millpond.Pool("host", name="device")


@pytest.fixture
def pinned() -> millpond.Pool:
    return millpond.Pool("host", memory="pinned")


def test_a_pool_says_what_memory_it_is_of(device: millpond.Pool, pinned: millpond.Pool) -> None:
    assert (device.memory, pinned.memory, pinned.device, pinned.name) == ("device", "pinned", "host", "pinned")
    assert repr(pinned) == "<millpond.Pool 'pinned' of pinned memory for host>"
    assert millpond.Pool("sim", memory="pinned", name="staging", hard_limit="1GiB").name == "staging"
    assert millpond.Pool("sim", memory=None, node=None).memory == "device"
    free, total = pinned.memory_info()
    assert 0 < free <= total


@pytest.mark.parametrize("word", ["pined", "DEVICE", ""])
def test_an_unknown_kind_of_memory_lists_those_that_there_are(word: Any) -> None:
    with pytest.raises(ValueError, match=f"memory: '{word}' is no kind of memory: expected 'device'"):
        millpond.Pool("host", memory=word)
    with pytest.raises(ValueError, match="is no kind of memory"):
        millpond.pool(0, memory=word)


def test_a_node_is_for_pinned_memory() -> None:
    with pytest.raises(ValueError, match="node: it is for memory='pinned'"):
        millpond.Pool("host", node=0)
    with pytest.raises(millpond.DeviceError, match="NUMA node"):
        millpond.Pool("host", memory="pinned", node=0)
    wrong: Any
    for wrong in (-1, "near", 1.5):
        with pytest.raises(ValueError, match="node: expected the number of a NUMA node, not"):
            millpond.Pool("host", memory="pinned", node=wrong)
    with pytest.raises(TypeError, match="memory: expected 'device'.*, not 5"):
        millpond.Pool("host", memory=5)  # type: ignore[arg-type]


def test_memory_is_taken_in_advance(pinned: millpond.Pool) -> None:
    stream = pinned.create_stream()
    pinned.reserve("8MiB", stream)
    assert pinned.stats().reserved.current >= 8 * MIB
    before = pinned.stats().calls.memory
    block = pinned.allocate(8 * MIB, stream)
    assert pinned.stats().calls.memory == before
    del block
    with pytest.raises(millpond.OutOfMemoryError, match="out of pinned host memory"):
        pinned.reserve(1 << 45)


def test_batches_go_up_and_down_in_stream_order(device: millpond.Pool, pinned: millpond.Pool) -> None:
    upload, compute, download = (device.create_stream() for _ in range(3))
    staging, results = pinned.allocate(4 * MIB, upload), pinned.allocate(4 * MIB, download)
    inputs = device.allocate(4 * MIB, compute)
    source = np.asarray(staging).view(np.uint32)
    for batch in range(5):
        staging.synchronize()  # the last batch was read
        source[:] = np.arange(MIB) + batch
        inputs.copy_from(staging)
        results.copy_from(inputs)
        assert (np.asarray(results).view(np.uint32) == np.arange(MIB) + batch).all()
    assert memoryview(results)[:4] == memoryview(staging)[:4]
    del source
    gc.collect()
    del staging  # the copy has it until it is done
    device.check()
    pinned.check()


def test_a_copy_keeps_its_source(device: millpond.Pool, pinned: millpond.Pool) -> None:
    upload, compute = device.create_stream(), device.create_stream()
    inputs = device.allocate(16 * MIB, compute)
    for batch in range(10):
        staging = pinned.allocate(16 * MIB, upload)
        np.asarray(staging)[:] = batch
        inputs.copy_from(staging)
        del staging
    assert (np.asarray(inputs) == 9).all()


def test_blocks_that_cannot_be_copied_are_refused(device: millpond.Pool, pinned: millpond.Pool) -> None:
    block, other = device.allocate(MIB), pinned.allocate(MIB)
    with pytest.raises(ValueError, match="Block.copy_from: 10 elements given, but 1048576 expected"):
        block.copy_from(device.allocate(10))
    with pytest.raises(ValueError, match="cannot be copied to itself"):
        block.copy_from(block)
    with pytest.raises(millpond.MisuseError, match="another device"):
        block.copy_from(millpond.Pool("sim").allocate(MIB))
    other.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        block.copy_from(other)
    with pytest.raises(millpond.MisuseError, match="freed already"):
        other.copy_from(block)
    with pytest.raises(millpond.MisuseError, match="freed already"):
        other.synchronize()
    block.synchronize()


def test_two_threads_copy_both_ways_at_once(device: millpond.Pool, pinned: millpond.Pool) -> None:
    one, two = device.allocate(1000, device.create_stream()), pinned.allocate(1000, device.create_stream())

    def copy(to: millpond.Block, other: millpond.Block) -> None:
        for _ in range(500):
            to.copy_from(other)

    threads = [threading.Thread(target=copy, args=blocks) for blocks in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(memoryview(one)) == bytes(memoryview(two))


def test_pinned_memory_of_a_simulated_device_has_no_bytes() -> None:
    block = millpond.Pool("sim", memory="pinned").allocate(MIB)
    with pytest.raises(BufferError, match="a simulated device keeps no bytes"):
        memoryview(block)


def test_managed_memory_is_used_in_place_and_prefetched() -> None:
    pool = millpond.Pool("host", memory="managed")
    stream, other = pool.create_stream(), pool.create_stream()
    assert (pool.memory, pool.name) == ("managed", "managed")
    table = pool.allocate(4 * MIB, stream)
    np.asarray(table)[:] = 7
    table.prefetch("device")
    table.prefetch("host", other)
    assert (np.asarray(table) == 7).all()
    assert table.residency().last_prefetch in ("device", "host")
    table.advise(read_mostly=True, preferred_location="device", accessed_by="host")
    found = table.residency()
    assert (found.read_mostly, found.preferred_location) == (True, "device")
    assert repr(found).endswith("preferred_location='device', read_mostly=True)")
    table.advise(read_mostly=False, preferred_location="anywhere", not_accessed_by="host")
    assert (table.residency().read_mostly, table.residency().preferred_location) == (False, None)
    table.advise(read_mostly=True)
    address = table.ptr
    del table
    again = pool.allocate(4 * MIB, stream)
    assert again.ptr == address and again.residency() != found and not again.residency().read_mostly


def test_what_is_for_managed_memory_is_refused_elsewhere(pinned: millpond.Pool) -> None:
    block = pinned.allocate(MIB)
    for call in (lambda: block.prefetch("host"), lambda: block.advise(read_mostly=True), block.residency):
        with pytest.raises(millpond.MisuseError, match="pool 'pinned' is not of managed memory"):
            call()
    managed = millpond.Pool("host", memory="managed").allocate(MIB)
    with pytest.raises(ValueError, match="to: 'gpu' is no place: expected 'device' or 'host'"):
        managed.prefetch("gpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="accessed_by: 'cpu' is no place"):
        managed.advise(accessed_by="cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="advise: say one of read_mostly, preferred_location"):
        managed.advise()
    managed.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        managed.residency()
    with pytest.raises(ValueError, match="node: it is for memory='pinned'"):
        millpond.Pool("host", memory="managed", node=0)
    with pytest.raises(ValueError, match="make a Pool of your own for 'managed'"):
        millpond.pool(0, memory="managed")  # type: ignore[arg-type]


def test_cupys_pinned_memory_is_the_shared_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    _millpond.stand_in(61, millpond.Pool("host", name="stand-in"))
    set_to: list[Any] = []
    pointer = lambda memory, offset: SimpleNamespace(mem=memory, ptr=memory.ptr + offset)  # noqa: E731
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 61),
        PinnedMemoryPointer=pointer,
        set_allocator=set_to.append,
        set_pinned_memory_allocator=set_to.append,
    )
    monkeypatch.setitem(__import__("sys").modules, "cupy", SimpleNamespace(cuda=cuda))
    millpond.cupy.enable(pinned=True)
    assert set_to == [millpond.cupy.allocate, millpond.cupy.allocate_pinned]
    pool = millpond.pool(61, memory="pinned")
    assert (pool.name, pool.memory) == ("stand-in pinned", "pinned")
    memory = millpond.cupy.allocate_pinned(3 * MIB)
    assert memory.mem.size == 3 * MIB and pool.stats().requested.current == 3 * MIB
    assert millpond.cupy.allocate_pinned(0).ptr == 0
    del memory
    gc.collect()
    assert pool.stats().requested.current == 0 and millpond.pool(61).stats().allocations == 0
