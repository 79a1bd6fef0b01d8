"""Pinned and managed memory of a GPU, which NumPy uses in place."""

from __future__ import annotations

from typing import Any

import millpond
import pytest

numpy: Any = pytest.importorskip("numpy")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


def test_batches_go_up_and_down_through_pinned_memory() -> None:
    pool, pinned = millpond.Pool(0), millpond.Pool(0, memory="pinned")
    upload, download = pool.create_stream(), pool.create_stream()
    pinned.reserve(128 * MIB, upload)
    staging, results = pinned.allocate(64 * MIB, upload), pinned.allocate(64 * MIB, download)
    inputs = pool.allocate(64 * MIB, upload)
    source = numpy.asarray(staging).view(numpy.int64)
    for batch in range(8):
        staging.synchronize()
        source[:] = numpy.arange(source.size) + batch
        inputs.copy_from(staging)
        results.copy_from(inputs)
        result = numpy.asarray(results).view(numpy.int64)
        assert (result == numpy.arange(source.size) + batch).all()
        assert (numpy.from_dlpack(results).view(numpy.int64) == result).all()
    with pytest.raises(BufferError, match="memory='pinned'"):
        memoryview(inputs)
    assert pinned.stats().reserved.current <= 1.02 * 128 * MIB
    pinned.check()


def test_a_copy_keeps_its_source_on_a_gpu() -> None:
    pool, pinned = millpond.Pool(0), millpond.Pool(0, memory="pinned")
    upload, compute = pool.create_stream(), pool.create_stream()
    inputs, results = pool.allocate(64 * MIB, compute), pinned.allocate(64 * MIB, compute)
    for batch in range(20):
        staging = pinned.allocate(64 * MIB, upload)
        numpy.asarray(staging)[:] = batch
        inputs.copy_from(staging)
        del staging
    results.copy_from(inputs)
    assert (numpy.asarray(results) == 19).all()


def test_managed_memory_is_used_in_place_and_prefetched() -> None:
    managed, pool = millpond.Pool(0, memory="managed"), millpond.Pool(0)
    stream = pool.create_stream()
    table, copy = managed.allocate(64 * MIB, stream), pool.allocate(64 * MIB, stream)
    numpy.asarray(table)[:] = 7
    table.prefetch("device")
    copy.copy_from(table)
    table.prefetch("host")
    assert (numpy.asarray(table) == 7).all()
    assert table.residency().last_prefetch == "host"
    table.advise(read_mostly=True, preferred_location="device", accessed_by="host")
    assert (table.residency().read_mostly, table.residency().preferred_location) == (True, "device")
    table.advise(read_mostly=False, preferred_location="anywhere", not_accessed_by="host")
    assert (table.residency().read_mostly, table.residency().preferred_location) == (False, None)
    with pytest.raises(millpond.MisuseError, match="not of managed memory"):
        copy.prefetch("host")
    managed.check()
