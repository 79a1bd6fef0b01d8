"""Blocks as tensors in place: DLPack, and the CUDA array interface."""

from __future__ import annotations

import gc
from typing import Any

import millpond
import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


def test_a_block_is_a_tensor_in_place() -> None:
    pool = millpond.Pool("cuda:0")
    for stream in (None, pool.create_stream(), torch.cuda.Stream()):
        block = pool.allocate(4 * MIB, stream)
        tensor = torch.from_dlpack(block)
        assert tensor.data_ptr() == block.ptr and tensor.device == torch.device("cuda:0")
        tensor.fill_(7)
        torch.cuda.synchronize()
        other = torch.as_tensor(block, device="cuda")  # the CUDA array interface
        assert other.data_ptr() == block.ptr and int(other[-1]) == 7
        with pytest.raises(millpond.MisuseError, match="arrays: 1"):
            block.free()
        del tensor, other
        gc.collect()
        block.free()
    assert pool.stats().blocks.current == 0
    pool.check()


def test_tensors_wait_for_the_blocks_stream_and_the_free_for_them() -> None:
    pool = millpond.Pool("cuda:0")
    own, theirs = pool.create_stream(), torch.cuda.Stream()
    for turn in range(10):
        block = pool.allocate(16 * MIB, own)
        with torch.cuda.stream(torch.cuda.ExternalStream(own.handle)):
            mine = torch.from_dlpack(block)
            torch.cuda._sleep(5_000_000)
            mine.fill_(turn)
        with torch.cuda.stream(theirs):
            seen = torch.from_dlpack(block)  # no host waits
            last = seen[-1].clone()
        block.record_use(theirs)
        theirs.synchronize()
        assert int(last) == turn
        del mine, seen
        gc.collect()
        block.free()
    pool.check()


def test_other_devices_and_streams_that_are_none_are_refused() -> None:
    block = millpond.Pool("cuda:0").allocate(MIB)
    for device in ((1, 0), (2, 63), (3, 0)):
        with pytest.raises(BufferError, match="does not reach"):
            block.__dlpack__(dl_device=device)
    for stream in (0, -2, "1"):
        with pytest.raises(ValueError, match="stream: .*expected 1 \\(the legacy default stream\\)"):
            block.__dlpack__(stream=stream)
    for kept in (1, 2, -1, None):
        assert block.__dlpack__(stream=kept, max_version=(1, 1)) is not None
    with pytest.raises(BufferError, match="which the CPU cannot read"):
        memoryview(block)


def test_a_pool_waits_for_work_without_the_gil() -> None:
    import threading

    pool = millpond.Pool("cuda:0")
    stream = pool.create_stream()
    block = pool.allocate(MIB, stream)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        torch.cuda._sleep(1_000_000_000)
    ran = threading.Event()
    threading.Timer(0.05, ran.set).start()
    block.synchronize()
    assert ran.is_set()
