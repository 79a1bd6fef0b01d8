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


@pytest.mark.parametrize("look", [memoryview, np.asarray, np.from_dlpack])
def test_a_pool_neither_sleeps_nor_is_evicted_while_it_is_looked_at(pool: millpond.Pool, look: Any) -> None:
    tag = pool.tagged("seen")
    block = tag.allocate(4 * MIB)
    seen, also = look(block), memoryview(block)
    seen[:2] = seen[2:4]
    for _ in range(2):
        with pytest.raises(millpond.MisuseError, match="views in Python: drop them first"):
            tag.sleep()
        with pytest.raises(millpond.MisuseError, match="views in Python: drop them first"):
            tag.evict()
        assert not tag.is_asleep and not tag.is_evicted
        seen = None
        gc.collect()
    also[:4] = b"kept"
    also.release()
    assert tag.sleep() == 4 * MIB
    with pytest.raises(millpond.MisuseError, match="sleeps"):
        look(block)
    tag.wake()
    tag.evict()
    with pytest.raises(millpond.MisuseError, match="evicted"):
        look(block)
    tag.restore()
    assert bytes(memoryview(block)[:4]) == b"kept"


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
    with pytest.raises(BufferError, match="does not reach"):
        pool.allocate(MIB).__dlpack__(dl_device=(2, 0))
    with pytest.raises(AttributeError, match="not memory of a GPU: use memoryview"):
        pool.allocate(MIB).__cuda_array_interface__


def test_numpy_raises_where_it_finds_no_bytes(pool: millpond.Pool) -> None:
    with pytest.raises(BufferError, match="a simulated device keeps no bytes"):
        np.asarray(millpond.Pool("sim").allocate(8))
    freed = pool.allocate(8)
    freed.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        np.array(freed, copy=True)
    array = pool.allocate(8).__array__(np.float32, True)
    assert array.shape == (8,) and array.dtype == np.float32


def test_a_tensor_is_the_memory_or_a_copy_as_it_is_asked(pool: millpond.Pool) -> None:
    for memory in ("device", "pinned", "managed"):
        block = millpond.Pool("host", memory=memory).allocate(MIB)
        shown = np.from_dlpack(block, device="cpu", copy=False)
        shown[:] = 7
        copy = np.from_dlpack(block, copy=True)
        assert shown.ctypes.data == block.ptr != copy.ctypes.data
        shown[:] = 8
        assert (copy == 7).all() and (np.from_dlpack(block) == 8).all()
        assert block.__dlpack_device__() == (1, 0)
        del shown
        gc.collect()
        block.free()
        assert (copy == 7).all()
    assert np.from_dlpack(pool.allocate(0), copy=True).size == 0


def test_a_tensor_says_whether_it_is_a_copy(pool: millpond.Pool) -> None:
    import ctypes

    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    class Head(ctypes.Structure):
        _fields_ = [
            ("version", ctypes.c_uint32 * 2),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
            ("flags", ctypes.c_uint64),
        ]

    block = pool.allocate(MIB)
    for copy, flags in ((None, 0), (False, 0), (True, 2)):
        capsule = block.__dlpack__(max_version=(1, 3), copy=copy)
        head = Head.from_address(get_pointer(capsule, b"dltensor_versioned"))
        assert (list(head.version), head.flags) == ([1, 0], flags)
        del capsule
    assert pool.stats().blocks.current == 1
