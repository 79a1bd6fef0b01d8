"""Several devices in one process: copies between them, and access to each other's memory."""

from __future__ import annotations

from typing import Any

import millpond
import pytest

np: Any = pytest.importorskip("numpy")
MIB = 1 << 20


@pytest.fixture
def pools() -> tuple[millpond.Pool, millpond.Pool]:
    first, second = (millpond.Pool("host", capacity="256MiB", name=name) for name in ("first", "second"))
    return first, second


def test_blocks_are_copied_between_devices(pools: tuple[millpond.Pool, millpond.Pool]) -> None:
    first, second = pools
    ours, theirs = first.create_stream(), second.create_stream()
    source, target = first.allocate(3 * MIB, ours), second.allocate(3 * MIB, theirs)
    for value in range(1, 5):
        np.asarray(source)[:] = value
        target.copy_from(source)
        np.asarray(source)[:] = 0  # waits for the copy
        assert (np.asarray(target) == value).all()
    assert first.is_accessible_from(source, second), "a copy gives the source's pages access"
    assert not second.is_accessible_from(target, first)


def test_a_block_is_given_to_another_device(pools: tuple[millpond.Pool, millpond.Pool]) -> None:
    first, second = pools
    ours, theirs = first.create_stream(), second.create_stream()
    block, other = first.allocate(3 * MIB, ours), first.allocate(64 * MIB, ours)
    assert not first.is_accessible_from(block, second)
    first.allow_access_to(block, second)
    assert first.is_accessible_from(block, second) and not first.is_accessible_from(other, second)
    theirs.wait_for(ours)
    block.record_use(theirs)
    with pytest.raises(millpond.MisuseError):
        second.allow_access_to(block, first)
    block.free()
    with pytest.raises(millpond.MisuseError):
        first.allow_access_to(block, second)


def test_access_to_a_pool_is_given_and_taken_back(pools: tuple[millpond.Pool, millpond.Pool]) -> None:
    first, second = pools
    before = first.allocate(MIB)
    first.allow_access(second)
    after = first.allocate(64 * MIB)
    assert first.is_accessible_from(before, second) and first.is_accessible_from(after, second)
    first.take_back_access(second)
    assert not first.is_accessible_from(before, second)
    with pytest.raises(ValueError, match="accessible_from_all"):
        millpond.Pool("host", accessible_from="all").take_back_access(first)


def test_devices_that_do_not_work_together_say_so(pools: tuple[millpond.Pool, millpond.Pool]) -> None:
    sim = millpond.Pool("sim")
    with pytest.raises(millpond.DeviceError, match="working together"):
        pools[0].allow_access(sim)
    with pytest.raises(millpond.MisuseError, match="another device"):
        pools[0].allocate(100).copy_from(sim.allocate(100))
    wrong: Any
    for wrong in ("first", None, 1.5):
        with pytest.raises(TypeError, match="peer: expected a millpond.Pool of the other device, or a GPU's number"):
            pools[0].allow_access(wrong)
    with pytest.raises(millpond.DeviceError):
        pools[0].allow_access(-1)
