"""RMM with millpond as its resource."""

from __future__ import annotations

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
