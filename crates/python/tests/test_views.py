"""A block's bytes for Python: memoryview, NumPy, DLPack."""

from __future__ import annotations

import gc
from typing import Any

import millpond
import pytest

np: Any = pytest.importorskip("numpy")
MIB = 1 << 20


@pytest.fixture
def pool() -> millpond.Pool:
    return millpond.Pool("host", name="shown")


def test_a_memoryview_is_the_blocks_bytes(pool: millpond.Pool) -> None:
    block = pool.allocate(3 * MIB, pool.create_stream())
    view = memoryview(block)
    assert (view.nbytes, view.format, view.readonly) == (3 * MIB, "B", False)
    view[:5] = b"hello"
    assert bytes(memoryview(block)[:5]) == b"hello"
    assert memoryview(pool.allocate(0)).nbytes == 0


def test_an_array_of_numpy_is_the_blocks_bytes(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    array = np.asarray(block).view(np.float32)
    array[:] = np.arange(MIB // 4)
    assert array.ctypes.data == block.ptr
    for other in (np.from_dlpack(block), np.frombuffer(block, np.uint8)):
        assert other.ctypes.data == block.ptr and other.shape == (MIB,) and other.dtype == np.uint8
        assert (other.view(np.float32) == array).all()


def test_a_block_is_not_freed_while_it_is_looked_at(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    view, tensor = memoryview(block), np.from_dlpack(block)
    with pytest.raises(millpond.MisuseError, match="arrays: 2\\): drop these before the block is freed"):
        block.free()
    view.release()
    del tensor
    gc.collect()
    block.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        memoryview(block)


def test_a_view_keeps_its_block(pool: millpond.Pool) -> None:
    looks: list[Any] = [memoryview, np.asarray, np.from_dlpack]
    for look in looks:
        seen = look(pool.allocate(MIB))
        gc.collect()
        assert pool.stats().blocks.current == 1
        seen[:4] = seen[4:8]
        del seen
        gc.collect()
        assert pool.stats().blocks.current == 0
    pool.check()


def test_a_tensor_that_nobody_takes_lets_go_of_its_block(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    for version in (None, (1, 0)):
        capsule = block.__dlpack__(max_version=version)
        with pytest.raises(millpond.MisuseError, match="arrays: 1"):
            block.free()
        del capsule
    block.free()


def test_where_the_cpu_cannot_read_it_is_said_in_words(pool: millpond.Pool) -> None:
    simulated = millpond.Pool("sim").allocate(MIB)
    for look in (memoryview, np.from_dlpack):
        with pytest.raises(BufferError, match="a simulated device keeps no bytes: use Pool\\('host'\\)"):
            look(simulated)
    with pytest.raises(BufferError, match="shows its own memory"):
        pool.allocate(MIB).__dlpack__(copy=True)
