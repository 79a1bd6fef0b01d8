"""PyTorch with millpond as its allocator by PyTorch's own interface: what a plugged allocator cannot do."""

from __future__ import annotations

import gc
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import millpond
import pytest

torch = pytest.importorskip("torch")

from both import (  # noqa: E402, F401
    test_a_captured_graph_replays_while_eager_work_goes_on,
    test_graphs_that_share_a_pool_replay_in_order,
    test_out_of_memory_is_torchs_error_with_the_pools_message,
    test_recorded_streams_keep_a_tensors_memory,
    test_sixteen_threads_with_a_stream_each,
    test_tensors_come_from_the_pool,
)
from tensors import GIB, KIB, MIB, empty, filled, holds, live_in, segments_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("native_interface", "nothing_is_broken")]


# ---- one allocation --------------------------------------------------------------------------------------------------


def test_the_library_for_this_pytorch_is_in_use() -> None:
    assert millpond.torch.backend() == "native-interface" and millpond.torch.is_enabled()
    assert torch.cuda.get_allocator_backend() == "millpond"


def test_a_raw_allocation_is_the_pools() -> None:
    before = millpond.stats(0).blocks.current
    address = torch.cuda.caching_allocator_alloc(MIB)
    assert millpond.stats(0).blocks.current == before + 1
    torch.cuda.caching_allocator_delete(address)
    assert millpond.stats(0).blocks.current == before


def test_a_pair_is_faster_than_native_and_is_printed() -> None:
    for _ in range(1000):
        empty(MIB)
    began = time.perf_counter()
    for _ in range(20_000):
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MIB, 0, torch.cuda.current_stream()))
    print(f"\n  a pair through torch.cuda.caching_allocator_alloc: {(time.perf_counter() - began) / 20_000 * 1e9:.0f} ns")
    began = time.perf_counter()
    for _ in range(20_000):
        empty(MIB)
    print(f"  torch.empty and its end: {(time.perf_counter() - began) / 20_000 * 1e9:.0f} ns")


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_memory_of_a_green_context_outlives_it_and_comes_back() -> None:
    green_contexts = pytest.importorskip("torch.cuda.green_contexts")
    if not green_contexts.SUPPORTED:
        pytest.skip("this PyTorch has no green contexts")
    torch.cuda.empty_cache()
    held, kept = torch.cuda.memory_reserved(), []
    for value in range(4):
        context = green_contexts.GreenContext.create(16, 0)
        with torch.cuda.stream(context.Stream()):
            kept.append(filled(64, value))
            filled(64, value)
        # Its streams end with it.
        del context
        gc.collect()
        # No other stream is held up by what was freed on one of those.
        other = filled(96, 7)
        assert holds(other, 7) and holds(kept[-1], value)
    del other, kept
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == held



def test_a_stream_recorded_on_memory_of_others_does_nothing() -> None:
    class Foreign:
        def __init__(self) -> None:
            self.pool = millpond.Pool(0, name="foreign")
            self.block = self.pool.allocate(4 * MIB)
            self.__cuda_array_interface__ = {
                "shape": (4 * MIB,),
                "typestr": "|u1",
                "data": (self.block.ptr, False),
                "version": 3,
            }

    foreign = Foreign()
    tensor = torch.as_tensor(foreign, device="cuda")
    tensor.record_stream(torch.cuda.Stream())
    assert tensor.numel() == 4 * MIB
    del tensor
    torch.cuda.synchronize()


def test_a_stream_of_another_gpu_is_recorded() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for other in (torch.cuda.Stream("cuda:1"), torch.cuda.default_stream(torch.device("cuda:1"))):
        tensor = torch.full((64 * MIB,), 7, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        with torch.cuda.device(1), torch.cuda.stream(other):
            torch.cuda._sleep(200_000_000)
            copy = tensor.to("cuda:1", non_blocking=True)
        tensor.record_stream(other)
        del tensor
        torch.full((64 * MIB,), 9, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize(1)
        assert copy.min().item() == 7


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_statistics_have_each_field_by_size() -> None:
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    before = torch.cuda.memory_stats()
    small, large = empty(1000), empty(3 * MIB + 1)
    stats = torch.cuda.memory_stats()

    def grew(name: str) -> int:
        return int(stats[name] - before[name])

    assert grew("allocated_bytes.small_pool.current") == KIB
    assert grew("allocated_bytes.large_pool.current") == 3 * MIB + 512
    assert grew("allocated_bytes.all.current") == grew("active_bytes.all.current") == 3 * MIB + 512 + KIB
    assert grew("requested_bytes.all.current") == 3 * MIB + 1001
    assert grew("allocation.small_pool.current") == grew("allocation.large_pool.current") == 1
    assert stats["allocated_bytes.all.allocated"] == 3 * MIB + 512 + KIB
    assert stats["allocation.all.allocated"] == stats["active.all.allocated"] == 2
    assert stats["reserved_bytes.all.current"] == millpond.stats(0).reserved.current > 0
    assert stats["segment.all.current"] > 0
    del small, large
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.freed"] == stats["allocated_bytes.all.allocated"]
    assert stats["allocated_bytes.all.peak"] >= before["allocated_bytes.all.current"] + 3 * MIB
    assert torch.cuda.memory_allocated() == stats["allocated_bytes.all.current"]
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert "Allocated memory" in torch.cuda.memory_summary()


def test_device_calls_and_errors_are_counted() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats()
    tensor = empty(256 * MIB)
    assert torch.cuda.memory_stats()["num_device_alloc"] > 0
    del tensor
    torch.cuda.empty_cache()
    assert torch.cuda.memory_stats()["num_device_free"] > 0
    with pytest.raises(torch.OutOfMemoryError):
        empty(2 * torch.cuda.mem_get_info()[1])
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def test_an_emptied_cache_holds_nothing_although_work_is_under_way() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    tensor = filled(512)
    torch.cuda._sleep(100_000_000)
    tensor.add_(1)
    del tensor
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 64 * MIB


# ---- limits, errors --------------------------------------------------------------------------------------------------


def test_a_memory_fraction_is_read_back_and_is_a_limit() -> None:
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(GIB / total)
        with pytest.raises(torch.OutOfMemoryError, match="raise the budget"):
            empty(2 * GIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    empty(2 * GIB)


def test_an_observer_is_told_of_an_out_of_memory() -> None:
    told: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: told.append(figures))
    size = 2 * torch.cuda.mem_get_info()[1]
    with pytest.raises(torch.OutOfMemoryError):
        empty(size)
    assert [(device, asked) for device, asked, *_ in told] == [(0, size)]
    assert told[0][2] == torch.cuda.mem_get_info()[1]


def test_cudnn_measures_its_algorithms() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        torch.nn.Conv2d(8, 16, 3).cuda()(torch.randn(4, 8, 64, 64, device="cuda")).sum().backward()
    finally:
        torch.backends.cudnn.benchmark = False


# ---- history, snapshots, the profiler --------------------------------------------------------------------------------


def test_a_snapshot_has_every_live_block() -> None:
    tensors = [empty(size) for size in (100, 5000, 700 * KIB, 3 * MIB, 100 * MIB)]
    gone = empty(50 * MIB)
    del gone
    segments = torch.cuda.memory_snapshot()
    for segment in segments:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        assert segment["blocks"][0]["address"] == segment["address"]
    live = set(live_in(segments))
    assert {tensor.data_ptr() for tensor in tensors} <= live
    stats = torch.cuda.memory_stats()
    assert sum(segment["allocated_size"] for segment in segments) == stats["allocated_bytes.all.current"]
    assert sum(segment["total_size"] for segment in segments) <= stats["reserved_bytes.all.current"]


def test_history_has_stacks_and_is_dumped(tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        torch.cuda.memory._set_memory_metadata("here")
        kept = filled(5)
        gone = filled(7)
        address = gone.data_ptr()
        del gone
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    finally:
        torch.cuda.memory._set_memory_metadata("")
        torch.cuda.memory._record_memory_history(enabled=None)
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    events = [event for event in snapshot["device_traces"][0] if event["addr"] == address]
    assert [event["action"] for event in events][-3:] == ["alloc", "free_requested", "free_completed"]
    assert events[-3]["size"] == 7 * MIB
    assert any(frame["name"] == "filled" for frame in events[-3]["frames"])
    assert events[-3].get("user_metadata") == "here"
    assert abs(events[-3]["time_us"] / 1e6 - time.time()) < 600
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    [block] = [block for block in blocks if block["address"] == kept.data_ptr()]
    assert block["state"] == "active_allocated" and block["requested_size"] == 5 * MIB
    assert any(frame["name"] == "filled" for frame in block["frames"])


def test_history_of_an_out_of_memory_is_kept() -> None:
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            empty(2 * torch.cuda.mem_get_info()[1])
        for _ in range(20):
            empty(1000)
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        assert len(events) == 10
        with pytest.raises(torch.OutOfMemoryError):
            empty(2 * torch.cuda.mem_get_info()[1])
        assert "oom" in [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_the_profiler_sees_memory() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        kept = [filled(16) for _ in range(3)]
    assert sum(event.self_device_memory_usage for event in profiler.key_averages()) >= 3 * 16 * MIB
    del kept


# ---- pools -----------------------------------------------------------------------------------------------------------


def test_a_mempool_has_its_own_memory() -> None:
    outside = empty(MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = filled(6, 4)
    assert set(live_in(segments_of(pool.id))) == {inside.data_ptr()}
    assert set(live_in(pool.snapshot())) == {inside.data_ptr()}
    assert outside.data_ptr() not in live_in(segments_of(pool.id))
    assert pool.use_count() == 1
    eager = [filled(6, 9) for _ in range(20)]
    assert inside.min().item() == inside.max().item() == 4
    del inside, eager
    reserved = torch.cuda.memory_reserved()
    del pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved


def test_mempools_are_each_threads() -> None:
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    others: list[Any] = []
    with torch.cuda.use_mem_pool(outer):
        first = empty(3 * MIB)
        thread = threading.Thread(target=lambda: others.append(empty(3 * MIB)))
        thread.start()
        thread.join()
    with torch.cuda.use_mem_pool(inner):
        second = empty(3 * MIB)
    assert set(live_in(segments_of(outer.id))) == {first.data_ptr()}
    assert set(live_in(segments_of(inner.id))) == {second.data_ptr()}
    with torch.cuda.use_mem_pool(outer), pytest.raises(RuntimeError):
        torch.cuda.memory._cuda_beginAllocateCurrentThreadToPool(0, outer.id)


def test_a_mempool_gives_its_memory_where_there_is_no_other() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        inside = empty(900 * MIB)
    del inside
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * MIB) / total)
    try:
        tensor = filled(800, 2)
        assert tensor.data_ptr() in live_in(segments_of(pool.id))
        assert tensor.min().item() == 2
        del tensor
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    del pool


def test_a_mempool_without_splits_is_left_to_pytorch() -> None:
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(3, 5)
    tensor.record_stream(torch.cuda.Stream())
    assert tensor.sum().item() == 5 * 3 * MIB
    assert live_in(pool.snapshot()) == [tensor.data_ptr()]
    del tensor, pool


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_a_graphs_result_lies_in_its_pool() -> None:
    entry = torch.ones(MIB, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = entry * 2
    assert result.data_ptr() in live_in(segments_of(graph.pool()))
    del result, graph


def test_a_checkpoint_makes_the_same_blocks_live_again() -> None:
    pool = torch.cuda.MemPool()
    check = torch._C._cuda_checkPoolLiveAllocations
    with torch.cuda.use_mem_pool(pool):
        first, second, third = filled(1, 1), filled(3, 2), filled(2, 3)
    addresses = {tensor.data_ptr() for tensor in (first, second, third)}
    assert check(0, pool.id, addresses)
    state = torch._C._cuda_getCheckpointState(0, pool.id)
    storages = [tensor.untyped_storage() for tensor in (first, second, third)]
    del first, second, third, storages
    assert check(0, pool.id, set())
    with torch.cuda.use_mem_pool(pool):
        other = [empty(MIB) for _ in range(5)]
    others = {tensor.data_ptr() for tensor in other}
    assert others & addresses, "the memory is used again"
    # These are stale; PyTorch takes their deleters away.
    stale = [tensor.untyped_storage()._cdata for tensor in other]
    torch._C._cuda_setCheckpointPoolState(0, state, stale, [])
    assert check(0, pool.id, addresses)
    del other
    assert check(0, pool.id, addresses)
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    assert check(0, pool.id, set())


def test_compiled_graph_trees_branch_and_agree_with_eager() -> None:
    pytest.importorskip("triton")
    torch.manual_seed(0)
    first, second = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")

    def model(x: Any, y: Any) -> Any:
        return torch.relu(x @ y) + x

    def left(x: Any, y: Any) -> Any:
        return (x * 2 + y).sin()

    def right(x: Any, y: Any) -> Any:
        return (x - y).cos() @ y

    compiled = [torch.compile(part, mode="reduce-overhead") for part in (model, left, right)]
    with torch.no_grad():
        for step in range(12):
            torch.compiler.cudagraph_mark_step_begin()
            here = compiled[0](first, second)
            branch = 1 + step % 2 if step > 4 else 1
            there = compiled[branch](here, second)
            eager = (left, right)[branch - 1](model(first, second), second)
            torch.testing.assert_close(there, eager, rtol=1e-3, atol=1e-3)
            torch.randn(1000 * step + 1, device="cuda")


def test_a_compiled_model_trains_with_graph_trees() -> None:
    pytest.importorskip("triton")
    losses = []
    for mode in (None, "reduce-overhead"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).cuda()
        step = torch.compile(model, mode=mode) if mode else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        these = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = step(torch.ones(32, 64, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            these.append(loss.item())
        losses.append(these)
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


# ---- pinned memory ---------------------------------------------------------------------------------------------------


def test_pinned_memory_is_the_pools_and_its_copies_are_right() -> None:
    host = millpond.pool(0, memory="pinned")
    tensor = torch.full((64 * MIB,), 3, dtype=torch.uint8, pin_memory=True)
    assert tensor.is_pinned() and host.stats().allocated.current >= 64 * MIB
    assert torch.cuda.host_memory_stats()["num_host_alloc"] > 0
    on_gpu = tensor.to("cuda", non_blocking=True)
    back = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
    back.copy_(on_gpu, non_blocking=True)
    torch.cuda.synchronize()
    assert bool((back == 3).all())
    host.check()


def test_pinned_memory_under_a_copy_is_not_handed_out() -> None:
    stream, on_gpu = torch.cuda.Stream(), []
    for value in range(1, 41):
        # The tensor goes at once. Its memory may not be written to before the copy is complete.
        tensor = torch.full((16 * MIB,), value, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(stream):
            on_gpu.append(tensor.to("cuda", non_blocking=True))
        del tensor
    torch.cuda.synchronize()
    assert [bool((copied == value).all()) for value, copied in enumerate(on_gpu, 1)] == [True] * 40
    on_gpu.clear()
    torch._C._host_emptyCache()
    assert millpond.pool(0, memory="pinned").stats().reserved.current == 0


def test_a_captured_copy_of_pinned_memory_is_replayed() -> None:
    to = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor = torch.full((MIB,), 9, dtype=torch.uint8, pin_memory=True)
        to.copy_(tensor, non_blocking=True)
        del tensor
    others = [torch.full((MIB,), 1, dtype=torch.uint8, pin_memory=True) for _ in range(16)]
    graph.replay()
    torch.cuda.synchronize()
    assert bool((to == 9).all()) and all(bool((other == 1).all()) for other in others)


def test_a_loader_pins_batches_in_the_pools_memory() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4096, dtype=torch.float32).reshape(64, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True)
    rows = torch.cat([batch.to("cuda", non_blocking=True) for (batch,) in loader])
    assert torch.equal(rows.cpu(), data.tensors[0])


# ---- pages, settings, other GPUs -------------------------------------------------------------------------------------


def test_pages_are_told_as_they_are_mapped_and_unmapped() -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        tensor = filled(300)
        mapped = [event for event in torch.cuda.memory._snapshot()["device_traces"][0] if event["action"] == "segment_map"]
        assert sum(event["size"] for event in mapped) >= 300 * MIB
        starts = {event["addr"]: event["size"] for event in mapped}
        first = max(start for start in starts if start <= tensor.data_ptr())
        assert first + starts[first] > tensor.data_ptr()
        del tensor
        torch.cuda.empty_cache()
        actions = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
        assert "segment_unmap" in actions
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_a_threshold_takes_effect_at_a_synchronise() -> None:
    torch.cuda.empty_cache()
    change = torch._C._accelerator_setAllocatorSettings
    total = torch.cuda.mem_get_info()[1]
    change(f"garbage_collection_threshold:{(torch.cuda.memory_reserved() + 64 * MIB) / total:.6f}")
    try:
        tensor = filled(1000)
        del tensor
        assert torch.cuda.memory_reserved() >= 1000 * MIB
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() < 1000 * MIB
    finally:
        change("garbage_collection_threshold:0.999")


def test_without_the_cache_tensors_come_from_the_driver() -> None:
    before = millpond.stats(0).blocks.current
    torch.cuda.caching_allocator_enable(False)
    try:
        tensor = filled(7, 3)
        assert millpond.stats(0).blocks.current == before
        assert tensor.sum().item() == 7 * 3 * MIB
    finally:
        torch.cuda.caching_allocator_enable(True)
    free = torch.cuda.mem_get_info()[0]
    del tensor
    assert torch.cuda.mem_get_info()[0] > free


def test_figures_of_a_gpu_that_was_not_used_make_no_context_there() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two GPUs")
    used = torch._C._cuda_hasPrimaryContext(1)
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.current"] == 0 or used
    torch.cuda.memory_snapshot()
    torch.cuda.reset_peak_memory_stats(1)
    torch.cuda.empty_cache()
    assert torch.cuda.get_per_process_memory_fraction(1) == 1.0
    assert torch._C._cuda_hasPrimaryContext(1) == used
