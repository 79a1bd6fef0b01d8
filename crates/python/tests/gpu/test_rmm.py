"""RMM with millpond as its resource."""

from __future__ import annotations

import gc
from typing import Any

import millpond
import pytest

rmm = pytest.importorskip("rmm")
pytestmark = pytest.mark.gpu


def test_buffers_come_from_the_pool_and_go_back() -> None:
    millpond.rmm.enable(0)
    before = millpond.stats(0).requested.current
    buffer = rmm.DeviceBuffer(size=1 << 20)
    assert millpond.stats(0).requested.current == before + (1 << 20)
    assert buffer.ptr and buffer.size == 1 << 20
    del buffer
    assert millpond.stats(0).requested.current == before
    millpond.pool(0).check()


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
    millpond.pool(0).check()
