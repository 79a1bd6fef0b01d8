"""CuPy with millpond as its allocator."""

from __future__ import annotations

import gc

import millpond
import pytest

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _enabled() -> None:
    millpond.cupy.enable()


def test_arrays_come_from_the_pool_and_go_back() -> None:
    before = millpond.stats(0).requested.current
    array = cupy.full((MIB,), 2.0, dtype=cupy.float32)
    assert millpond.stats(0).requested.current == before + 4 * MIB
    assert float(array.sum()) == 2 * MIB
    assert isinstance(array.data.mem, cupy.cuda.UnownedMemory)
    del array
    gc.collect()
    assert millpond.stats(0).requested.current == before
    assert cupy.empty(0).size == 0


def test_streams_that_are_gone_leave_their_arrays_alone() -> None:
    kept = []
    for step in range(50):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            kept.append((step, cupy.full((10_000,), step, dtype=cupy.int64)))
            cupy.full((20_000,), -1, dtype=cupy.int64)
        stream.synchronize()
        del stream
    gc.collect()
    assert all(int(array.sum()) == 10_000 * step for step, array in kept)
    del kept
    millpond.pool(0).check()


def test_out_of_memory_is_millponds() -> None:
    with pytest.raises(millpond.OutOfMemoryError, match="requested, but"):
        cupy.empty(1 << 42, dtype=cupy.uint8)


def test_pinned_memory_comes_from_the_pool_and_goes_back() -> None:
    numpy = pytest.importorskip("numpy")
    millpond.cupy.enable(pinned=True)
    try:
        pool = millpond.pool(0, memory="pinned")
        for turn in range(20):
            host = numpy.full(MIB, turn, dtype=numpy.int64)
            array = cupy.asarray(host)  # staged in pinned memory
            assert int(array.sum()) == turn * MIB
            back = cupy.cuda.alloc_pinned_memory(8 * MIB)
            assert pool.stats().requested.current >= 8 * MIB
            result = numpy.frombuffer(back, numpy.int64, MIB)
            array.get(out=result)
            assert (result == turn).all()
            del result, back
        cupy.cuda.Device(0).synchronize()
        cupy.cuda.alloc_pinned_memory(1)  # lets go of what CuPy watched
        gc.collect()
        assert pool.stats().requested.current <= 1
        pool.check()
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)


def test_a_program_written_for_cupys_pool_finds_its_methods() -> None:
    pool = millpond.cupy.MemoryPool()
    array = cupy.empty(5 * MIB, dtype=cupy.uint8)
    assert pool.used_bytes() >= 5 * MIB and pool.used_bytes() + pool.free_bytes() == pool.total_bytes()
    del array
    pool.free_all_blocks()
    assert pool.free_bytes() < 5 * MIB
    total = cupy.cuda.Device().mem_info[1]
    pool.set_limit(fraction=0.25)
    try:
        assert abs(pool.get_limit() - total // 4) <= MIB
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(total // 2, dtype=cupy.uint8)
    finally:
        pool.set_limit()
    assert pool.get_limit() == 0
    allocator = cupy.cuda.get_allocator()
    cupy.cuda.set_allocator(pool.malloc)
    assert float(cupy.ones(10).sum()) == 10
    cupy.cuda.set_allocator(allocator)


def test_blocks_are_arrays_in_place() -> None:
    pool = millpond.Pool("cuda:0")
    stream = cupy.cuda.Stream(non_blocking=True)
    for given in (None, stream, pool.create_stream()):
        block = pool.allocate(4 * MIB, given)
        interface = block.__cuda_array_interface__
        assert interface["data"] == (block.ptr, False) and interface["version"] == 3
        assert interface["stream"] == (1 if given is None else getattr(given, "ptr", None) or given.handle)
        array = cupy.asarray(block).view(cupy.float32)
        array[:] = cupy.arange(MIB)
        cupy.cuda.Device(0).synchronize()
        tensor = cupy.from_dlpack(block)
        assert tensor.data.ptr == array.data.ptr == block.ptr and tensor.dtype == cupy.uint8
        assert bool((tensor.view(cupy.float32) == cupy.arange(MIB)).all())
        with pytest.raises(millpond.MisuseError, match="arrays: 1"):
            block.free()
        with stream:
            other = cupy.from_dlpack(block)
            assert int(other[4:8].view(cupy.float32)[0]) == 1
        stream.synchronize()
        del tensor, other, array
        gc.collect()
        block.free()
        with pytest.raises(millpond.MisuseError, match="freed already"):
            block.__cuda_array_interface__
    assert block.__dlpack_device__() == (2, 0)
    pool.check()


def test_blocks_of_pinned_and_managed_memory_are_arrays_of_both_sides() -> None:
    numpy = pytest.importorskip("numpy")
    for memory in ("pinned", "managed"):
        block = millpond.Pool("cuda:0", memory=memory).allocate(MIB)
        assert block.__dlpack_device__() == (1, 0)
        numpy.from_dlpack(block)[:] = 3
        array = cupy.asarray(block)
        assert array.data.ptr == block.ptr and int(array.sum()) == 3 * MIB
        array += 1
        block.synchronize()
        assert (numpy.asarray(block) == 4).all()
        assert block.__dlpack__(dl_device=(2, 0), stream=1, max_version=(1, 0)) is not None


def test_a_tensor_waits_for_the_blocks_stream_and_the_free_for_the_tensors() -> None:
    pool = millpond.Pool("cuda:0")
    own, theirs = pool.create_stream(), cupy.cuda.Stream(non_blocking=True)
    for turn in range(20):
        block = pool.allocate(64 * MIB, own)
        with cupy.cuda.ExternalStream(own.handle):
            mine = cupy.asarray(block)
            mine.fill(turn)
        with theirs:
            seen = cupy.from_dlpack(block)
            total = int(seen[:: 1 << 20].sum())
        assert total == 64 * turn
        del mine, seen
        gc.collect()
        block.free()


def test_a_captured_graph_keeps_its_memory() -> None:
    pool = millpond.Pool("cuda:0")
    stream = cupy.cuda.Stream(non_blocking=True)
    result = cupy.zeros(MIB, dtype=cupy.int64)
    with stream:  # loads the kernels
        result += cupy.ones(MIB, dtype=cupy.int64)
        cupy.empty(8, dtype=cupy.int64).fill(2)
    stream.synchronize()
    memory = pool.capture_pool()
    with memory.begin(stream), stream:
        stream.begin_capture()
        block = pool.allocate(8 * MIB, stream)
        scratch = cupy.asarray(block).view(cupy.int64)
        scratch.fill(2)
        result += scratch
        del scratch
        block.free()
        graph = stream.end_capture()
    assert memory.reserved >= 8 * MIB and memory.used == 0
    for turn in range(5):
        others = [pool.allocate(8 * MIB, stream) for _ in range(4)]
        with stream:
            for other in others:
                cupy.asarray(other).fill(255)
        graph.launch(stream)
        stream.synchronize()
        assert int(result[0]) == int(result[-1]) == 1 + 2 * (turn + 1)
        del others
    del graph, memory
    gc.collect()
    pool.check()


def test_a_host_function_that_a_closing_pool_waits_for_gets_the_gil() -> None:
    import threading

    for end in ("pool", "block", "synchronize"):
        pool = millpond.Pool("cuda:0")
        stream = cupy.cuda.Stream(non_blocking=True)
        block = pool.allocate(64 * MIB, stream)
        started = threading.Event()
        ran: list[int] = []

        def slow(_argument: object, started: threading.Event = started, ran: list[int] = ran) -> None:
            started.set()
            threading.Event().wait(0.2)
            ran.append(1)

        stream.launch_host_func(slow, None)
        assert started.wait(10)
        if end == "synchronize":
            pool.synchronize()
        elif end == "pool":
            del block
            pool.destroy()
        else:
            del pool, block
        stream.synchronize()
        assert ran == [1]
