"""PyTorch's pools of memory: graphs' and MemPool's, and the checkpoints by which graph trees go back to an earlier state.

The comments name the tests of PyTorch's test_cuda.py that assert the same.
"""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensors import (  # noqa: E402
    KIB,
    MIB,
    VERSION,
    WHILE,
    addresses_of,
    captured,
    empty,
    filled,
    holds,
    limited,
    live_in,
    segments_of,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("native_interface", "nothing_is_broken", "pools_are_given_back"),
]


@pytest.fixture
def pools_are_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no pool behind."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = private_segments()
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # PyTorch ends no capture that CUDA has ended: its pool stays.
    if request.function is not test_a_capture_that_fails_leaves_the_allocator_in_order:
        assert private_segments() <= before


def private_segments() -> int:
    return sum(segment["segment_pool_id"] != (0, 0) for segment in torch.cuda.memory_snapshot())


def bytes_of(size: int) -> Any:
    return torch.ones(size, dtype=torch.uint8, device="cuda")


def checkpoint(pool: Any) -> Any:
    return torch._C._cuda_getCheckpointState(0, pool)


def restore(state: Any, stale: Any = (), adopting: Any = ()) -> None:
    """Makes the blocks of a checkpoint live again. Of `stale` tensors the memory is taken; `adopting` ones own theirs again."""
    data = [[tensor.untyped_storage()._cdata for tensor in tensors] for tensors in (stale, adopting)]
    torch._C._cuda_setCheckpointPoolState(0, state, *data)


def are_live(pool: Any, addresses: set[int]) -> bool:
    return bool(torch._C._cuda_checkPoolLiveAllocations(0, tuple(pool), addresses))


def raw_free(address: int) -> None:
    torch._C._cuda_cudaCachingAllocator_raw_delete(address)


def picture(pool: Any) -> dict[int, Any]:
    """What a pool holds: by the address of a segment, its figures and its live blocks."""
    figures = ("device", "total_size", "allocated_size", "active_size", "segment_type", "segment_pool_id")
    return {
        segment["address"]: (
            [segment[name] for name in figures],
            [(block["address"], block["size"]) for block in segment["blocks"] if block["state"] == "active_allocated"],
        )
        for segment in segments_of(pool)
    }


# ---- checkpoints: TestBlockStateAbsorption -----------------------------------------------------------------------------


def several() -> Any:
    x = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    total = bytes_of(MIB) + bytes_of(MIB) + bytes_of(MIB)
    return x + x, bytes_of(MIB) + total, bytes_of(MIB)


def eleven(*kept: int) -> Callable[[], Any]:
    """Eleven smallest blocks in a row, of which some stay."""

    def make() -> Any:
        small = [bytes_of(512) for _ in range(11)]
        return [small[at] for at in kept]

    return make


# test_simple, test_allocated_in_middle_of_segment, test_multiple_middle_allocations, test_middle_allocations_contiguous
@pytest.mark.parametrize("make", [several, eleven(5), eleven(5, 8), eleven(5, 6)], ids=["several", "one", "two", "pair"])
def test_a_checkpoint_restored_at_once_changes_nothing(make: Callable[[], Any]) -> None:
    graph, outputs = captured(make)
    before = picture(graph.pool())
    assert sum(len(live) for _, live in before.values()) == len(outputs)
    restore(checkpoint(graph.pool()))
    after = picture(graph.pool())
    assert {address: after.get(address) for address in before} == before
    assert are_live(graph.pool(), addresses_of(outputs))


# test_additional_free_following_checkpoint
def test_what_came_after_a_checkpoint_is_gone_when_it_is_restored() -> None:
    graph, outputs = captured(lambda: [bytes_of(512)])
    before = picture(graph.pool())
    state = checkpoint(graph.pool())
    later, stale = captured(lambda: [bytes_of(512)], pool=graph.pool())
    restore(state, stale=stale)
    del stale
    after = picture(graph.pool())
    assert {address: after.get(address) for address in before} == before
    assert are_live(graph.pool(), addresses_of(outputs))
    del later


# test_tensor_dies_after_checkpoint
def test_restored_blocks_are_freed_by_their_addresses() -> None:
    graph, outputs = captured(lambda: [bytes_of(512), bytes_of(512)])
    state, addresses = checkpoint(graph.pool()), [output.data_ptr() for output in outputs]
    del outputs
    assert live_in(segments_of(graph.pool())) == []
    restore(state)
    assert set(live_in(segments_of(graph.pool()))) == set(addresses)
    raw_free(addresses[0])
    assert live_in(segments_of(graph.pool())) == [addresses[1]]
    raw_free(addresses[1])
    assert live_in(segments_of(graph.pool())) == []


def over(address: int, size: int) -> Any:
    """A tensor over memory that it does not own."""
    device = torch.device("cuda", 0)
    storage = torch._C._construct_storage_from_data_pointer(address, device, size)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,))


# test_assigning_back_deleter_fns_to_tensor
def test_tensors_own_restored_blocks_if_they_are_named() -> None:
    added = torch.ones(1, dtype=torch.uint8, device="cuda")
    sizes = (2 * MIB, 2 * MIB, 20 * MIB)
    graph, outputs = captured(lambda: [bytes_of(size) + added for size in sizes])
    graph.replay()
    assert all(holds(output, 2) for output in outputs)
    state, addresses = checkpoint(graph.pool()), [output.data_ptr() for output in outputs]
    del outputs
    assert live_in(segments_of(graph.pool())) == []
    tensors: list[Any] = [over(*each) for each in zip(addresses, sizes)]
    assert all(holds(tensor, 2) for tensor in tensors)
    added.add_(1)
    graph.replay()
    assert all(holds(tensor, 3) for tensor in tensors)
    restore(state, adopting=tensors[:2])
    for left in (2, 1):
        tensors[2 - left] = None
        assert len(live_in(segments_of(graph.pool()))) == left
    # Of this one nothing was said.
    tensors[2] = None
    assert live_in(segments_of(graph.pool())) == [addresses[2]]
    raw_free(addresses[2])
    assert live_in(segments_of(graph.pool())) == []


# test_resnet
def test_a_checkpoint_of_a_convolutional_net_is_restored() -> None:
    layers = [torch.nn.Conv2d(3 if at == 0 else 32, 32, 3, padding=1) for at in range(8)]
    model = torch.nn.Sequential(*layers).cuda().eval()
    pictures = torch.rand(1, 3, 255, 255, device="cuda")
    with torch.no_grad():
        graph, output = captured(lambda: [model(pictures)])
        before = picture(graph.pool())
        restore(checkpoint(graph.pool()))
        assert picture(graph.pool()) == before
        graph.replay()
        torch.testing.assert_close(output[0], model(pictures), rtol=1e-3, atol=1e-3)


# test_check_pool_live_allocations
def test_a_pool_is_asked_which_blocks_are_live() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, outputs = captured(lambda: [torch.ones(4, device="cuda")], pool=pool)
    [address] = addresses_of(outputs)
    assert are_live(pool, {address})
    assert not are_live(pool, {address, 0})
    assert not are_live(pool, set())
    del outputs
    assert are_live(pool, set())
    del graph


# test_allocate_in_thread_to_pool
def test_a_pool_takes_what_one_thread_allocates() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, outputs = captured(lambda: [torch.rand(4, device="cuda")], pool=pool)
    del outputs
    inside: list[int] = []
    outside: list[int] = []

    @contextmanager
    def of_this_thread() -> Iterator[None]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(0, pool)
                torch._C._cuda_releasePool(0, pool)

    def three(seen: list[int]) -> None:
        first, second = bytes_of(20 * MIB), bytes_of(20 * MIB)
        third = first + second
        seen += [tensor.data_ptr() for tensor in (first, second, third)]

    def with_pool() -> None:
        with of_this_thread():
            for _ in range(10):
                three(inside)
        three(outside)

    def without() -> None:
        for _ in range(10):
            three(outside)

    threads = [threading.Thread(target=target) for target in (with_pool, without)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments_of(pool)]

    def is_within(address: int) -> bool:
        return any(start <= address < end for start, end in spans)

    assert len(inside) == 30 and all(is_within(address) for address in inside)
    assert len(outside) == 33 and not any(is_within(address) for address in outside)
    del graph
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert segments_of(pool) == []


# ---- MemPool: TestMemPool ----------------------------------------------------------------------------------------------


# test_mempool_id
def test_each_pool_has_a_name_of_its_own() -> None:
    handle, pool = torch.cuda.graph_pool_handle(), torch.cuda.MemPool()
    assert (handle[0] == 0) == (pool.id[0] == 0)
    assert pool.id[1] > handle[1]


# test_mempool_multithread
def test_threads_make_pools_with_different_names() -> None:
    pools: list[Any] = []
    threads = [threading.Thread(target=lambda: pools.append(torch.cuda.MemPool())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pool.id for pool in pools}) == 4


# test_mempool_empty_cache
def test_the_end_of_a_pool_leaves_other_memory() -> None:
    pool, outside = torch.cuda.MemPool(), filled(4, 7)
    with torch.cuda.use_mem_pool(pool):
        inside = empty(4 * MIB)
    del inside
    del pool
    assert torch.cuda.memory._snapshot()["segments"]
    assert holds(outside, 7)


# test_mempool_emptycache_multithread
def test_emptying_the_cache_within_a_pool_leaves_the_pool() -> None:
    pools, failures = [torch.cuda.MemPool() for _ in range(4)], list[BaseException]()

    def work(pool: Any) -> None:
        try:
            with torch.cuda.use_mem_pool(pool):
                tensor = torch.randn(4, device="cuda")
                del tensor
                torch.cuda.empty_cache()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [len(pool.snapshot()) for pool in pools] == [1] * 4


# test_mempool_ctx_multithread
def test_a_pool_in_use_is_not_for_other_threads() -> None:
    pool, others = torch.cuda.MemPool(), list[Any]()
    with torch.cuda.use_mem_pool(pool):
        inside = empty(MIB)
        del inside
        thread = threading.Thread(target=lambda: others.append(empty(MIB)))
        thread.start()
        thread.join(timeout=10)
        assert not thread.is_alive()
        assert live_in(segments_of(pool.id)) == []
        assert others[0].data_ptr() in live_in(segments_of((0, 0)))


# test_nested_mempool
def test_pools_nest() -> None:
    pools, tensors = [torch.cuda.MemPool() for _ in range(3)], list[Any]()

    def allocate() -> None:
        tensors.append(empty(20 * MIB))

    with torch.cuda.use_mem_pool(pools[0]):
        allocate()
        with torch.cuda.use_mem_pool(pools[1]):
            allocate()
            with torch.cuda.use_mem_pool(pools[2]):
                allocate()
            allocate()
        allocate()
    for pool, wanted in zip(pools, ((0, 4), (1, 3), (2,))):
        assert set(live_in(torch.cuda.memory_snapshot(pool.id))) == {tensors[at].data_ptr() for at in wanted}


# test_mempool_with_allocator
def test_a_pool_is_claimed_while_it_is_used() -> None:
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(MIB)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    del tensor


# test_tensor_delete_after_allocator_delete
def test_tensors_outlive_their_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [filled(3, value) for value in range(5)]
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    others = [filled(3, 9) for _ in range(5)]
    assert [holds(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 5
    del tensors, others


# test_mempool_limited_memory_with_allocator
def test_only_a_pool_that_says_so_gives_its_memory_to_others() -> None:
    for_itself, for_all = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
    with limited(80 * MIB):
        with torch.cuda.use_mem_pool(for_itself):
            first = empty(40 * MIB)
        with torch.cuda.use_mem_pool(for_all):
            second = empty(40 * MIB)
        address = second.data_ptr()
        with pytest.raises(torch.OutOfMemoryError):
            empty(40 * MIB)
        del first, second
        third = filled(30, 3)
        assert third.data_ptr() == address
        with pytest.raises(torch.OutOfMemoryError):
            empty(30 * MIB)
    assert holds(third, 3)
    del third
    with torch.cuda.use_mem_pool(for_all):
        assert empty(20 * MIB).data_ptr() == address


# test_deleted_mempool_not_used_on_oom
def test_pools_that_are_gone_are_not_asked_for_memory() -> None:
    with limited(40 * MIB):
        for _ in range(10):
            pool = torch.cuda.MemPool(use_on_oom=True)
            with torch.cuda.use_mem_pool(pool):
                empty(40 * MIB)
            del pool
        last = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(last):
            empty(40 * MIB)
        tensors = [filled(20, value) for value in (1, 2)]
        assert set(live_in(segments_of(last.id))) == addresses_of(tensors)
    assert [holds(tensor, value) for value, tensor in enumerate(tensors, 1)] == [True] * 2
    del tensors


# test_mempool_no_split
@pytest.mark.skipif(VERSION < (2, 10), reason="PyTorch has it since 2.10")
def test_a_pool_without_splits_has_a_block_in_each_segment() -> None:
    split, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    tensors = []
    for value in (1, 2):
        for pool in (split, whole):
            with torch.cuda.use_mem_pool(pool):
                tensors.append(filled(4, value))
    assert [len(segment["blocks"]) for segment in whole.snapshot()] == [1, 1]
    assert len(whole.snapshot()) > len(split.snapshot())
    assert [holds(tensor, value) for tensor, value in zip(tensors, (1, 1, 2, 2))] == [True] * 4
    del tensors, pool


# ---- a MemPool with an allocator of the program's inside ---------------------------------------------------------------

PLUGGED = """
#include <stddef.h>
#include <dlfcn.h>
int allocated = 0, freed = 0;
typedef int (*Malloc)(void **, size_t);
typedef int (*Free)(void *);
void *plugged_alloc(size_t bytes, int gpu, void *stream) {
  void *ptr = 0;
  (void)gpu, (void)stream;
  ++allocated;
  return ((Malloc)dlsym(RTLD_DEFAULT, "cudaMalloc"))(&ptr, bytes) ? 0 : ptr;
}
void plugged_free(void *ptr, size_t bytes, int gpu, void *stream) {
  (void)bytes, (void)gpu, (void)stream;
  ++freed;
  ((Free)dlsym(RTLD_DEFAULT, "cudaFree"))(ptr);
}
"""


class Plugged:
    """An allocator over `cudaMalloc` that counts its calls."""

    def __init__(self, library: Path) -> None:
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(str(library), "plugged_alloc", "plugged_free")
        self.library = ctypes.CDLL(str(library))

    def calls(self) -> tuple[int, int]:
        allocated, freed = (ctypes.c_int.in_dll(self.library, name) for name in ("allocated", "freed"))
        return allocated.value, freed.value


@pytest.fixture
def plugged(tmp_path: Path) -> Plugged:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "plugged.c").write_text(PLUGGED)
    library = tmp_path / "plugged.so"
    command = [compiler, "-D_GNU_SOURCE", "-shared", "-fPIC", str(tmp_path / "plugged.c"), "-ldl", "-o", str(library)]
    subprocess.run(command, check=True)
    # PyTorch has loaded the CUDA runtime for itself only.
    ctypes.CDLL(next(line.split()[-1] for line in Path("/proc/self/maps").open() if "libcudart" in line), ctypes.RTLD_GLOBAL)
    return Plugged(library)


# test_mempool_with_allocator
def test_a_plugged_allocator_serves_its_pool_alone(plugged: Plugged) -> None:
    pool = torch.cuda.MemPool(plugged.allocator.allocator())
    assert pool.use_count() == 1 and plugged.calls() == (0, 0)
    with torch.cuda.use_mem_pool(pool):
        inside = filled(1, 5)
        assert pool.use_count() == 2
    made = plugged.calls()[0]
    assert made >= 1
    outside = filled(1, 6)
    assert plugged.calls() == (made, 0)
    assert live_in(pool.snapshot()) == [inside.data_ptr()]
    assert holds(inside, 5) and holds(outside, 6)
    del inside, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert plugged.calls() == (made, made)


# test_mempool_empty_cache_inactive
def test_a_tensor_keeps_the_plugged_memory_of_a_pool_that_is_gone(plugged: Plugged) -> None:
    pool = torch.cuda.MemPool(plugged.allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(4, 5)
    del pool
    plugged.allocator = None
    gc.collect()
    torch.cuda.empty_cache()
    made, freed = plugged.calls()
    assert made >= 1 and freed == 0
    assert holds(tensor, 5)
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert plugged.calls() == (made, made)


# ---- graphs: TestCuda.test_graph_* -------------------------------------------------------------------------------------


# test_graph_two_successive, test_graph_concurrent_replay
@pytest.mark.parametrize("share", [False, True])
def test_two_graphs_are_replayed_in_turn(share: bool) -> None:
    size, turns = 1000, 5
    values, stream = torch.ones(size, device="cuda"), torch.cuda.Stream()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first.capture_begin(pool=torch.cuda.graph_pool_handle())
        middle = values.clone()
        for _ in range(turns):
            middle = middle + torch.ones(size, device="cuda")
        first.capture_end()
        second.capture_begin(*([first.pool()] if share else []))
        for _ in range(turns):
            middle = middle + torch.ones(size, device="cuda")
        second.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    first.replay()
    second.replay()
    assert middle.sum().item() == size * (2 * turns + 1)
    del middle
    assert (first.pool() == second.pool()) == share


# test_graph_three_successive
def test_of_graphs_that_share_a_pool_each_finds_what_another_left() -> None:
    a = torch.ones(1000, device="cuda")
    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    torch.cuda.synchronize()
    with torch.cuda.graph(graphs[0]):
        b = a.clone()
        c = b + 1
        d = b + 2
    with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
        e = c + 3
        del c
    with torch.cuda.graph(graphs[2], pool=graphs[0].pool()):
        f = d + 4
    for value in (1, 5):
        a.fill_(value)
        for graph in graphs:
            graph.replay()
        assert (e[0].item(), f[-1].item()) == (value + 4, value + 6)


# test_graph_memory_stats_and_use_result_after_destroy_graph
@pytest.mark.parametrize("size", [512, 256 * KIB, MIB, 30 * MIB])
def test_a_result_outlives_its_graph(size: int) -> None:
    before = torch.cuda.memory_allocated()
    graph, (result,) = captured(lambda: [bytes_of(size) + 1])
    assert live_in(segments_of(graph.pool())) == [result.data_ptr()]
    graph.replay()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    others = [bytes_of(size) for _ in range(4)]
    assert holds(result, 2)
    assert result.data_ptr() not in addresses_of(others)
    held = torch.cuda.memory_allocated()
    del result
    assert torch.cuda.memory_allocated() == held - size
    del others
    assert torch.cuda.memory_allocated() == before


# test_graph_record_stream
def test_memory_used_by_another_stream_of_a_graph_is_not_handed_out_in_it() -> None:
    graph, main, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(main):
        graph.capture_begin()
        first = torch.ones(8, device="cuda")
        address = first.data_ptr()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            doubled = first * 2
            first.record_stream(side)
        del first
        # Not joined yet: the other stream may still read it.
        assert torch.empty(8, device="cuda").data_ptr() != address
        main.wait_stream(side)
        result = doubled + 1
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    assert result.tolist() == [3.0] * 8
    del doubled


# test_cuda_graph_allocator_propagates_stream
def test_streams_that_join_a_capture_allocate_in_its_pool() -> None:
    x = torch.randn(1 << 20, device="cuda")
    graph, first, second = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    first.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        graph.capture_begin()
        y = x + 1
    with torch.cuda.stream(second):
        second.wait_stream(first)
        z = y + 1
    first.wait_stream(second)
    with torch.cuda.stream(first):
        graph.capture_end()
    segments = segments_of(graph.pool())
    assert set(live_in(segments)) == {y.data_ptr(), z.data_ptr()}
    of_stream = {segment["stream"]: live_in([segment]) for segment in segments}
    assert of_stream == {first.cuda_stream: [y.data_ptr()], second.cuda_stream: [z.data_ptr()]}
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(z, x + 2)


# test_cuda_graph_error_options, test_graph_error
def test_a_capture_that_fails_leaves_the_allocator_in_order() -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError):
        with torch.cuda.graph(graph):
            inside = torch.ones(1000, device="cuda")
            inside.sum().item()  # waits for the GPU, which a capture cannot
    del inside
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = torch.ones(1000, device="cuda") * 3
    graph.replay()
    assert result.sum().item() == 3000
    assert bytes_of(MIB).sum().item() == MIB


# test_graph_capture_oom
def test_a_capture_runs_out_of_memory() -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(torch.OutOfMemoryError):
        with torch.cuda.graph(graph):
            empty(1 << 44)
    assert bytes_of(MIB).sum().item() == MIB


# test_cuda_graph_raw_graph_reset_and_recapture
def test_a_graph_is_reset_and_captured_anew() -> None:
    graph = torch.cuda.CUDAGraph()
    for step in (1.0, 2.0):
        x = torch.zeros(2000, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            temporary = x + step
            x.copy_(temporary)
        del temporary
        graph.replay()
        graph.replay()
        assert holds(x, 2 * step)
        graph.reset()


# test_cuda_graph_raw_graph_keep_graph_false, test_cuda_graph_raw_graph_exec
def test_a_graph_that_is_kept_is_instantiated_twice() -> None:
    graph, x = torch.cuda.CUDAGraph(keep_graph=True), torch.zeros(2000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x += 1
    assert graph.raw_cuda_graph()
    for replays in (1, 2):
        graph.instantiate()
        assert graph.raw_cuda_graph_exec()
        graph.replay()
        assert holds(x, replays)


# test_graph_is_current_stream_capturing
def test_a_capture_knows_that_it_is_one() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside, x = torch.cuda.is_current_stream_capturing(), torch.ones(4, device="cuda")
    assert inside and not torch.cuda.is_current_stream_capturing()
    graph.replay()
    assert x.tolist() == [1.0] * 4


# test_graph_make_graphed_callables
def test_graphed_callables_train_as_eager_ones() -> None:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    eager = torch.nn.Sequential(*layers).cuda()
    other = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
    other.load_state_dict(eager.state_dict())
    graphed = torch.cuda.make_graphed_callables(other, (torch.randn(16, 64, device="cuda", requires_grad=True),))
    results = []
    for model in (eager, graphed):
        torch.manual_seed(1)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for _ in range(10):
            optimizer.zero_grad(set_to_none=True)
            loss = model(torch.randn(16, 64, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    del model, graphed


def test_many_pools_come_and_go_while_streams_work() -> None:
    before = torch.cuda.memory_allocated()
    stream = torch.cuda.Stream()
    for step in range(30):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensor = filled(2 + step % 5, step)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(WHILE // 100)
            copy = tensor.clone()
        tensor.record_stream(stream)
        del tensor, pool
        torch.cuda.current_stream().wait_stream(stream)
        assert holds(copy, step)
    del copy
    assert torch.cuda.memory_allocated() == before


# ---- pinned memory in graphs: TestCachingHostAllocatorCudaGraph --------------------------------------------------------


def pinned_in_a_graph(body: Callable[[], Any], pool: Any = None) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = body()
    return graph, result


# test_pin_memory_no_use
def test_pinned_blocks_that_live_in_a_capture_differ() -> None:
    graph, (first, second) = pinned_in_a_graph(lambda: [torch.empty(8, pin_memory=True) for _ in range(2)])
    assert first.data_ptr() != second.data_ptr()
    del graph


# test_pin_memory_no_use2
def test_a_pinned_block_without_a_copy_is_handed_out_again_in_a_capture() -> None:
    def twice() -> list[int]:
        return [torch.randn(8).pin_memory().data_ptr() for _ in range(2)]

    graph, (first, second) = pinned_in_a_graph(twice)
    assert first == second
    del graph


# test_pin_memory_use
def test_a_pinned_block_that_a_capture_copied_is_not_handed_out_again() -> None:
    def copied() -> tuple[int, int, Any]:
        data, on_gpu = torch.full((8,), 5.0).pin_memory(), torch.empty(8, device="cuda")
        on_gpu.copy_(data, non_blocking=True)
        address = data.data_ptr()
        del data
        return address, torch.randn(8).pin_memory().data_ptr(), on_gpu

    graph, (first, second, on_gpu) = pinned_in_a_graph(copied)
    assert first != second
    graph.replay()
    assert on_gpu.tolist() == [5.0] * 8


# test_two_graphs
@pytest.mark.parametrize("copies", [True, False])
def test_two_graphs_of_a_pool_share_its_pinned_memory(copies: bool) -> None:
    pool = torch.cuda.graph_pool_handle()

    def body() -> int:
        data = torch.randn(8).pin_memory()
        if copies:
            torch.empty(8, device="cuda").copy_(data, non_blocking=True)
        return int(data.data_ptr())

    first, second = pinned_in_a_graph(body, pool), pinned_in_a_graph(body, pool)
    assert (first[1] == second[1]) == (not copies)


# test_unpinned_memory_use, test_unpinned_memory_use_device_to_host
@pytest.mark.parametrize("to_host", [False, True])
def test_a_capture_refuses_a_copy_of_memory_that_is_not_pinned(to_host: bool) -> None:
    with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors during CUDA graph capture"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            host, on_gpu = torch.empty(8), torch.empty(8, device="cuda")
            (host if to_host else on_gpu).copy_(on_gpu if to_host else host, non_blocking=True)
    assert bytes_of(MIB).sum().item() == MIB, "the process goes on"


@pytest.mark.parametrize("how", ["sync", "python", "free"])
def test_a_capture_that_fails_keeps_no_memory(how: str) -> None:
    before = torch.cuda.memory_reserved()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with pytest.raises((RuntimeError, ValueError)), torch.cuda.graph(graph):
            block = torch.ones(64 * MIB // 4, device="cuda")
            if how == "sync":
                block.sum().item()  # not allowed in a capture
            elif how == "python":
                raise ValueError("the program's own")
            del block
            torch.cuda.synchronize()
        block = None
        del graph
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before <= 8 * MIB
    # A good one works afterwards.
    ones = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tripled = ones * 3
    ones.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert tripled[0].item() == 15
