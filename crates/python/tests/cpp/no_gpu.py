"""PyTorch's CUDA build on the native interface, without a GPU: `scripts/check-torch-shims` runs this.

The CUDA runtime does nothing (`no_cuda.c`), and a pool of the CPU stands in for GPU 0's. So everything can be tried but kernels.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pickle
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import millpond
from millpond import _millpond
from millpond._torch_shim import minor_of

MIB = 1 << 20

pool = millpond.Pool("host", name="stand-in", hard_limit=512 * MIB)
_millpond.stand_in(0, pool)
version = tuple(int(number) for number in minor_of(importlib.metadata.version("torch")).split("."))
# PyTorch 2.9 has fewer settings, and refuses to name a backend where the allocator is another.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:0.9"
if version >= (2, 10):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] += ",per_process_memory_fraction:0.75,backend:native"
with warnings.catch_warnings():
    warnings.simplefilter("error")
    millpond.torch.enable(pinned=True)

import torch  # noqa: E402

# The properties of the GPU, which has none.
torch.cuda._queued_calls.clear()
torch.cuda.init()


def empty(bytes: int) -> Any:
    return torch.empty(bytes, dtype=torch.uint8, device="cuda")


def live(id: tuple[int, int] | None = None) -> set[int]:
    segments = torch.cuda.memory_snapshot()
    wanted = [segment for segment in segments if id is None or segment["segment_pool_id"] == tuple(id)]
    blocks = [block for segment in wanted for block in segment["blocks"]]
    return {block["address"] for block in blocks if block["state"] == "active_allocated"}


def fails(call: Any, error: type[BaseException], words: str) -> None:
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}")


def figures() -> None:
    small, large = empty(1000), empty(3 * MIB + 1)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["allocated_bytes.large_pool.current"] == 3 * MIB + 512
    assert stats["requested_bytes.all.current"] == 3 * MIB + 1001
    assert stats["reserved_bytes.all.current"] == pool.stats().reserved.current
    assert stats["allocation.all.allocated"] == 2
    if hasattr(torch.accelerator, "memory_stats"):
        accelerator = torch.accelerator.memory_stats()
        assert accelerator["allocated_bytes.all.current"] == stats["allocated_bytes.all.current"]
    del small
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 3 * MIB + 512
    for segment in torch.cuda.memory_snapshot():
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
    assert live() == {large.data_ptr()}


def limits() -> None:
    assert torch.cuda.get_per_process_memory_fraction() == (0.75 if version >= (2, 10) else 1.0)
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    torch.cuda.set_per_process_memory_fraction(1.0)
    told: list[Any] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: told.append(figures[:2]))
    begins = "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of "
    fails(lambda: empty(1 << 30), torch.OutOfMemoryError, begins)
    fails(lambda: empty(1 << 30), torch.OutOfMemoryError, " is free. out of memory in pool 'stand-in': ")
    assert told == [(0, 1 << 30)] * 2
    fails(lambda: empty(1 << 60), torch.OutOfMemoryError, "Tried to allocate more than 1EB memory")


def settings() -> None:
    if version < (2, 10):
        return
    change = torch._C._accelerator_setAllocatorSettings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        change("max_split_size_mb:64,roundup_power2_divisions:4,backend:native")
        change("max_split_size_mb:64")
    assert ["max_split_size_mb, roundup_power2_divisions have no effect" in str(one.message) for one in said] == [True]
    fails(lambda: change("unheard_of:1"), ValueError, "Unrecognized key")
    fails(lambda: change("backend:cudaMallocAsync"), ValueError, "leave out 'backend:cudaMallocAsync'")
    empty(100 * MIB)
    torch.cuda.synchronize()
    assert pool.stats().reserved.current >= 100 * MIB, "less than the threshold"
    change("garbage_collection_threshold:0.0001,per_process_memory_fraction:0.8")
    assert torch.cuda.get_per_process_memory_fraction() == 0.8
    torch.cuda.synchronize()
    assert pool.stats().reserved.current < 100 * MIB
    change("garbage_collection_threshold:0.9,per_process_memory_fraction:1.0")


def history() -> None:
    torch.cuda.memory._record_memory_history(stacks="python")
    kept, gone = empty(5 * MIB), empty(7 * MIB)
    address = gone.data_ptr()
    del gone
    with TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(f"{folder}/snapshot.pickle")
        snapshot = pickle.loads((Path(folder) / "snapshot.pickle").read_bytes())
    torch.cuda.memory._record_memory_history(enabled=None)
    assert snapshot["device_traces"][0][-1]["action"] == "free_completed", "the snapshot itself comes after it"
    events = [event for event in snapshot["device_traces"][0] if event["addr"] == address]
    assert [event["action"] for event in events] == ["alloc", "free_requested", "free_completed"]
    assert [frame["name"] for frame in events[0]["frames"]][:2] == ["empty", "history"]
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    [block] = [block for block in blocks if block["address"] == kept.data_ptr()]
    assert block["requested_size"] == 5 * MIB and block["frames"][1]["name"] == "history"


def segments() -> None:
    """What is told of pages is what backs the blocks."""
    torch.cuda.empty_cache()
    assert pool.stats().reserved.current == 0
    torch.cuda.memory._record_memory_history(stacks="python")
    tensors = [empty(size * MIB) for size in (5, 70, 1)]
    kept = tensors.pop(1)
    tensors.clear()
    torch.cuda.empty_cache()
    mapped: dict[int, int] = {}
    actions, stacks = set(), {"segment_map": "empty", "segment_unmap": "empty_cache"}
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        actions.add(event["action"])
        if event["action"] in stacks:
            assert stacks[event["action"]] in {frame["name"] for frame in event["frames"]}
        if event["action"] == "segment_map":
            assert event["addr"] not in mapped
            mapped[event["addr"]] = event["size"]
        elif event["action"] == "segment_unmap":
            assert mapped.pop(event["addr"]) == event["size"]
    assert actions >= {"segment_map", "segment_unmap"}
    assert sum(mapped.values()) == pool.stats().reserved.current >= 70 * MIB
    pages = sorted(mapped.items())
    starts = [at for at, size in pages if at <= kept.data_ptr() < at + size]
    at = starts[0]
    while at < kept.data_ptr() + 70 * MIB:
        at += mapped[at]
    torch.cuda.memory._record_memory_history(enabled=None)
    if version < (2, 10):
        return
    torch.cuda.memory._record_memory_history(stacks="python", skip_actions=["segment_map"])
    empty(90 * MIB)
    told = {event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]}
    assert "alloc" in told and "segment_map" not in told
    torch.cuda.memory._record_memory_history(enabled=None)


def pools() -> None:
    outside, memory = empty(MIB), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(memory):
        inside = empty(6 * MIB)
        again = torch._C._cuda_beginAllocateCurrentThreadToPool
        fails(lambda: again(0, memory.id), RuntimeError, "already in a capture")
    assert live(memory.id) == {inside.data_ptr()} and outside.data_ptr() not in live(memory.id)
    before = torch.cuda.memory_reserved()
    del inside, memory
    gc.collect()
    assert torch.cuda.memory_reserved() < before
    memory = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(memory):
        inside = empty(300 * MIB)
    del inside
    gc.collect()
    last = empty(280 * MIB)
    assert live(memory.id) == {last.data_ptr()}
    if version >= (2, 10):
        memory = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(memory):
            native = empty(3 * MIB)
        native.record_stream(torch.cuda.current_stream())
        assert [segment["address"] for segment in memory.snapshot()] == [native.data_ptr()]
        assert native.data_ptr() not in live()
        del native


def checkpoints() -> None:
    memory, are_live = torch.cuda.MemPool(), torch._C._cuda_checkPoolLiveAllocations
    with torch.cuda.use_mem_pool(memory):
        tensors = [empty(MIB), empty(3 * MIB), empty(2 * MIB)]
    addresses = {tensor.data_ptr() for tensor in tensors}
    state = torch._C._cuda_getCheckpointState(0, memory.id)
    tensors.clear()
    assert are_live(0, memory.id, set())
    with torch.cuda.use_mem_pool(memory):
        tensors = [empty(MIB) for _ in range(5)]
    assert addresses & {tensor.data_ptr() for tensor in tensors}
    torch._C._cuda_setCheckpointPoolState(0, state, [tensor.untyped_storage()._cdata for tensor in tensors], [])
    tensors.clear()
    assert are_live(0, memory.id, addresses)
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    assert are_live(0, memory.id, set())


def pinned() -> None:
    shared, name = millpond.pool(0, memory="pinned"), "active_bytes" if version >= (2, 10) else "allocated_bytes"
    host = torch.arange(3 * MIB, dtype=torch.uint8, pin_memory=True)
    assert shared.stats().allocated.current >= 3 * MIB and int(host[1000]) == 1000 % 256
    stats = torch.cuda.host_memory_stats()
    assert stats[f"{name}.current"] == 3 * MIB and stats["num_host_alloc"] > 0
    empty(3 * MIB).copy_(host, non_blocking=True)
    address = host.data_ptr()
    del host
    assert shared.stats().allocated.current == 0
    # The copy is complete.
    assert torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True).data_ptr() == address
    torch.cuda.memory.reset_peak_host_memory_stats()
    torch.cuda.memory.reset_accumulated_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert stats[f"{name}.peak"] == stats[f"{name}.allocated"] == stats["num_host_alloc"] == 0
    torch._C._host_emptyCache()
    assert shared.stats().reserved.current == 0
    shared.check()
    # Memory that is not the pools' is copied as ever.
    empty(MIB).copy_(torch.zeros(MIB, dtype=torch.uint8), non_blocking=True)


def without_cache() -> None:
    kept, before = empty(MIB), pool.stats().blocks.current
    torch.cuda.caching_allocator_enable(False)
    tensor = empty(MIB)
    assert pool.stats().blocks.current == before and tensor.data_ptr() not in live()
    tensor.record_stream(torch.cuda.current_stream())
    requested = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    raw = torch.cuda.caching_allocator_alloc(MIB)
    assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == requested
    torch.cuda.caching_allocator_delete(raw)
    torch.cuda.caching_allocator_enable(True)
    assert empty(MIB).data_ptr() != tensor.data_ptr()
    # Each goes back to where it came from.
    del kept, tensor
    gc.collect()
    assert pool.stats().blocks.current == before - 1


def others() -> None:
    tensor = empty(MIB)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = [empty(16 * MIB) for _ in range(3)]
    assert sum(event.self_device_memory_usage for event in profiler.key_averages()) == 48 * MIB
    child = os.fork()
    if child == 0:
        # It drops its parent's tensors.
        del tensor, kept
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


TRACKER = """
#include <c10/cuda/CUDACachingAllocator.h>
#include <stdexcept>
static int throws_at = -1;
extern "C" void track() {
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto& entry) {
    if (entry.action_ == throws_at) throw std::runtime_error("not tracked");
  });
}
extern "C" void throw_at(int action) { throws_at = action; }
extern "C" int alloc_throws(size_t bytes) {
  try {
    c10::cuda::CUDACachingAllocator::raw_delete(c10::cuda::CUDACachingAllocator::raw_alloc(bytes));
  } catch (const std::runtime_error&) {
    return 1;
  }
  return 0;
}
"""

ALLOC, FREE_REQUESTED = 0, 1


def throwing_trackers() -> None:
    """A tracker's exception reaches the program, passes no pool, and leaves no block behind."""
    import ctypes
    import subprocess

    from millpond import _compile
    from torch.utils import cpp_extension

    with TemporaryDirectory() as folder:
        (Path(folder) / "tracker.cpp").write_text(TRACKER)
        includes = [f"-I{path}" for path in [*cpp_extension.include_paths(), *_compile.cuda_includes()]]
        library = f"{folder}/libtracker.so"
        command = ["g++", "-std=c++20", "-shared", "-fPIC", "-w", f"{folder}/tracker.cpp", "-o", library, *includes]
        subprocess.run([*command, f"-L{Path(torch.__file__).parent}/lib", "-lc10_cuda", "-lc10"], check=True)
        tracker = ctypes.CDLL(library)
        tracker.track()
        before = pool.stats().blocks.current
        for action in (ALLOC, FREE_REQUESTED):
            tracker.throw_at(action)
            for _ in range(3):
                assert tracker.alloc_throws(ctypes.c_size_t(MIB)) == 1
            tracker.throw_at(-1)
            assert tracker.alloc_throws(ctypes.c_size_t(MIB)) == 0
            assert pool.stats().blocks.current == before
        # In the midst of a restored pool.
        memory = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(memory):
            tensors = [empty(MIB), empty(MIB)]
        state = torch._C._cuda_getCheckpointState(0, memory.id)
        tensors.clear()
        tracker.throw_at(ALLOC)
        fails(lambda: torch._C._cuda_setCheckpointPoolState(0, state, [], []), RuntimeError, "not tracked")
        tracker.throw_at(-1)
        del memory, state
        gc.collect()
        assert pool.stats().blocks.current == before


for each in (
    *(figures, limits, settings, history, segments, pools, checkpoints, pinned, without_cache, others),
    throwing_trackers,
):
    each()
    gc.collect()
    pool.check()
    print(f"  {each.__name__}")
