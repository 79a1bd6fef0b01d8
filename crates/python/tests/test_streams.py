"""Streams of other libraries that are registered."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import millpond
import pytest

MIB = 1 << 20


class Foreign:
    """Another library's stream."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def _pair(pool: millpond.Pool, stream: Any) -> int:
    block = pool.allocate(MIB, stream)
    address = block.ptr
    block.free()
    return address


def test_a_registered_stream_is_one_with_its_handle() -> None:
    pool = millpond.Pool("host")
    # What it stands for is kept.
    made = pool.create_stream()
    registered = pool.register_stream(Foreign(made.handle))
    assert registered.handle == made.handle
    assert len({_pair(pool, stream) for stream in (registered, made.handle, Foreign(made.handle), made)}) == 1
    registered.unregister()
    registered.unregister()  # nothing is left to do
    _pair(pool, made.handle)
    pool.check()


def test_the_owner_is_kept_as_long_as_the_stream_is_registered() -> None:
    pool = millpond.Pool("host")
    made = pool.create_stream()
    owner = Foreign(made.handle)
    alive = weakref.ref(owner)
    registered = pool.register_stream(owner)
    block = pool.allocate(MIB, registered)
    del owner, registered
    gc.collect()
    assert alive() is not None, "the block is on the stream"
    del block
    gc.collect()
    assert alive() is None


def test_default_streams_need_no_registration() -> None:
    pool = millpond.Pool("host")
    for handle in (0, 1, 2):
        stream = pool.register_stream(handle)
        _pair(pool, stream)
        stream.unregister()
        _pair(pool, stream)


def test_what_is_no_stream_is_refused() -> None:
    pool = millpond.Pool("host")
    with pytest.raises(millpond.DeviceError):
        pool.register_stream(0xDEAD00)
    with pytest.raises(TypeError):
        pool.register_stream("a stream")  # type: ignore[arg-type]
