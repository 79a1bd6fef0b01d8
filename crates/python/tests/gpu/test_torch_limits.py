"""PyTorch's memory within limits: figures, fractions, running out and trying again, and contents while all of that goes on.

The comments name the tests of PyTorch's test_cuda.py that assert the same.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensors import ALLOCATOR, GIB, KIB, MIB, WHILE, addresses_of, empty, filled, holds, limited  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("native_interface", "nothing_is_broken", "figures_agree"),
]


def figure(name: str) -> int:
    return int(torch.cuda.memory_stats()[name])


@pytest.fixture
def figures_agree() -> Iterator[None]:
    """After each test as much is allocated as before, and the figures agree with each other."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before
    stats = torch.cuda.memory_stats()
    for name in ("allocated_bytes", "requested_bytes", "active_bytes", "allocation", "active"):
        of_all, small, large = (stats[f"{name}.{kind}.current"] for kind in ("all", "small_pool", "large_pool"))
        assert of_all == small + large, name
        assert stats[f"{name}.all.current"] <= stats[f"{name}.all.peak"]
        assert stats[f"{name}.all.current"] == stats[f"{name}.all.allocated"] - stats[f"{name}.all.freed"] + offset[name]
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert stats["allocated_bytes.all.current"] <= stats["reserved_bytes.all.current"]


#: What was live when the totals were last set to 0.
offset = dict.fromkeys(("allocated_bytes", "requested_bytes", "active_bytes", "allocation", "active"), 0)


def start_totals() -> None:
    torch.cuda.reset_accumulated_memory_stats()
    offset.update({name: figure(f"{name}.all.current") for name in offset})


# ---- figures -----------------------------------------------------------------------------------------------------------


# test_memory_stats, _test_memory_stats_generator
def test_figures_follow_each_allocation_and_free() -> None:
    start_totals()
    torch.cuda.reset_peak_memory_stats()
    base, tensors, most = torch.cuda.memory_allocated(), list[Any](), torch.cuda.memory_allocated()
    chance = random.Random(5)
    for at in range(120):
        before = torch.cuda.memory_allocated()
        if tensors and chance.random() < 0.4:
            gone = tensors.pop(chance.randrange(len(tensors)))
            size = gone.numel()
            del gone
            change = torch.cuda.memory_allocated() - before
            assert -1.25 * size - 2 * MIB <= change <= -size
        else:
            size = chance.choice((1, 1000, 100 * KIB, MIB, 3 * MIB, 12 * MIB)) + chance.randrange(1000)
            tensors.append(empty(size))
            change = torch.cuda.memory_allocated() - before
            assert size <= change <= 1.25 * size + 2 * MIB
        most = max(most, torch.cuda.memory_allocated())
        assert torch.cuda.max_memory_allocated() == most
        assert torch.cuda.memory_allocated() <= torch.cuda.memory_reserved() <= torch.cuda.max_memory_reserved()
    live = sum(tensor.numel() for tensor in tensors)
    assert torch.cuda.memory_allocated() - base >= live
    tensors.clear()
    assert torch.cuda.memory_allocated() == base
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == base


# test_memory_stats
def test_all_ways_to_ask_say_the_same() -> None:
    tensor = filled(5)
    nested, flat = torch.cuda.memory_stats_as_nested_dict(), torch.cuda.memory_stats()
    for name, kinds in nested.items():
        for kind, values in kinds.items() if isinstance(kinds, dict) else ():
            for what, value in values.items() if isinstance(values, dict) else ():
                assert flat[f"{name}.{kind}.{what}"] == value
    stats = torch.accelerator.memory_stats()
    for name in ("allocated_bytes.all.current", "reserved_bytes.all.current", "active_bytes.all.peak", "num_ooms"):
        assert stats[name] == flat[name]
    here = torch.cuda.current_device()
    for device in (None, here, f"cuda:{here}", torch.device("cuda", here)):
        assert torch.cuda.memory_allocated(device) == flat["allocated_bytes.all.current"]
    pairs = (
        (torch.accelerator.memory_allocated, torch.cuda.memory_allocated),
        (torch.accelerator.max_memory_allocated, torch.cuda.max_memory_allocated),
        (torch.accelerator.memory_reserved, torch.cuda.memory_reserved),
        (torch.accelerator.max_memory_reserved, torch.cuda.max_memory_reserved),
    )
    assert all(one() == other() for one, other in pairs)
    assert "Allocated memory" in torch.cuda.memory_summary() and "GPU reserved" in torch.cuda.memory_summary(abbreviated=True)
    del tensor


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_older_names_say_the_same() -> None:
    assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
    assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()
    filled(8)
    torch.cuda.reset_max_memory_allocated()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    torch.cuda.reset_max_memory_cached()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()


def test_the_accelerators_functions_reset_and_empty() -> None:
    filled(64)
    torch.cuda.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.memory_allocated()
    torch.accelerator.reset_accumulated_memory_stats()
    offset.update({name: figure(f"{name}.all.current") for name in offset})
    assert figure("allocation.all.allocated") == 0
    held = torch.cuda.memory_reserved()
    torch.accelerator.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 60 * MIB
    if hasattr(torch.accelerator, "get_memory_info"):
        free, total = torch.accelerator.get_memory_info()
        assert 0 < free <= total == torch.cuda.mem_get_info()[1]


# test_mem_get_info
def test_the_gpus_free_memory_falls_with_an_allocation() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    tensor = empty(512 * MIB)
    assert 0 < torch.cuda.mem_get_info("cuda:0")[0] <= free - 512 * MIB
    del tensor
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() >= (free - 64 * MIB, total)
    assert isinstance(torch.cuda.list_gpu_processes(), str)


# test_matmul_memory_use
def test_products_of_the_same_size_take_the_same_memory() -> None:
    def peak() -> int:
        torch.cuda.synchronize()
        most = int(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return most

    first, second = torch.rand(1, 32, 32, device="cuda"), torch.rand(24, 32, 1, device="cuda")
    torch.matmul(first, second)
    peak()
    peaks = []
    wide = first.expand(24, 32, 32)
    for multiply, left in ((torch.matmul, first), (torch.matmul, wide), (torch.bmm, wide)):
        multiply(left, second)
        peaks.append(peak())
    assert len(set(peaks)) == 1
    torch._C._cuda_clearCublasWorkspaces()


# test_host_memory_stats
def test_pinned_memory_has_figures() -> None:
    torch._C._host_emptyCache()
    torch.cuda.memory.reset_accumulated_host_memory_stats()
    torch.cuda.memory.reset_peak_host_memory_stats()
    # Since PyTorch 2.10 they have other names.
    is_new = "active_bytes.current" in torch.cuda.host_memory_stats()
    name, held = ("active_bytes", "allocated_bytes") if is_new else ("allocated_bytes", "reserved_bytes")
    before = torch.cuda.host_memory_stats()[f"{name}.current"]
    tensor = torch.ones(2 * MIB, dtype=torch.uint8, pin_memory=True)
    stats = torch.cuda.host_memory_stats()
    assert stats[f"{name}.current"] - before == 2 * MIB
    assert stats[f"{name}.peak"] >= 2 * MIB and stats["num_host_alloc"] >= 1
    nested = torch.cuda.memory.host_memory_stats_as_nested_dict()
    assert nested[name]["current"] == stats[f"{name}.current"]
    del tensor
    torch._C._host_emptyCache()
    after = torch.cuda.host_memory_stats()
    assert after[f"{held}.current"] <= stats[f"{held}.current"] - 2 * MIB and after["num_host_free"] >= 1


# ---- raw allocations ---------------------------------------------------------------------------------------------------


# test_cachingAllocator_raw_alloc
def test_a_raw_allocation_is_counted() -> None:
    stream = torch.cuda.current_stream()
    for arguments in ((MIB,), (MIB, 0), (MIB, 0, stream), (MIB, torch.device("cuda", 0), stream.cuda_stream)):
        before = figure("requested_bytes.all.allocated")
        address = torch.cuda.caching_allocator_alloc(*arguments)
        assert figure("requested_bytes.all.allocated") - before == MIB
        torch.cuda.caching_allocator_delete(address)
    with pytest.raises(TypeError):
        torch.cuda.caching_allocator_alloc(MIB, 0, "stream")


# test_cachingAllocator_raw_alloc
def test_a_raw_allocation_without_the_cache_is_not_counted() -> None:
    before = figure("requested_bytes.all.allocated")
    torch.cuda.caching_allocator_enable(False)
    try:
        address = torch.cuda.caching_allocator_alloc(MIB)
        assert figure("requested_bytes.all.allocated") == before
        torch.cuda.caching_allocator_delete(address)
    finally:
        torch.cuda.caching_allocator_enable(True)


def test_the_allocator_cannot_be_changed_again() -> None:
    filled(1)
    again = torch.cuda.memory._get_current_allocator()
    with pytest.raises(RuntimeError, match="already initialized"):
        torch.cuda.memory.change_current_allocator(again)


# ---- limits ------------------------------------------------------------------------------------------------------------


# test_out_of_memory
def test_out_of_memory_begins_as_pytorchs_own() -> None:
    total = torch.cuda.mem_get_info()[1]
    begins = rf"^CUDA out of memory\. Tried to allocate {{}}\. GPU 0 has a total capacity of {total / GIB:.2f} GiB of which "
    with pytest.raises(torch.OutOfMemoryError, match=begins.format("800000000.00 GiB")):
        empty(800_000_000 * GIB)
    with pytest.raises(torch.OutOfMemoryError, match="^CUDA out of memory. Tried to allocate more than 1EB memory"):
        empty(8_000_000_000 * GIB)
    with limited(64 * MIB), pytest.raises(torch.OutOfMemoryError, match=begins.format("100.00 MiB")):
        empty(100 * MIB)
    assert holds(filled(1), 1)


# test_set_per_process_memory_fraction
def test_a_fraction_is_a_limit_until_it_is_raised() -> None:
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="Invalid fraction"):
            torch.cuda.set_per_process_memory_fraction(wrong)
    with pytest.raises(TypeError, match="Invalid type for fraction"):
        torch.cuda.set_per_process_memory_fraction(1)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        assert torch.cuda.get_per_process_memory_fraction(0) == pytest.approx(0.05)
        room = int(0.05 * total) - torch.cuda.memory_reserved()
        tensor = empty(int(0.9 * room))
        del tensor
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            empty(int(0.1 * total))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    empty(int(0.1 * total))
    torch.cuda.empty_cache()


# test_allocator_memory_fraction_setting
@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_the_fraction_is_read_from_the_environment(fraction: float) -> None:
    enable = "" if ALLOCATOR == "native" else f"import millpond; millpond.torch.enable(backend={ALLOCATOR!r}); "
    program = f"{enable}import torch; torch.cuda.init(); print(torch.cuda.get_per_process_memory_fraction(0))"
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{fraction}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == fraction


# test_raises_oom
@pytest.mark.parametrize("size", [1 << 40, 1 << 50])
def test_sizes_that_no_gpu_has_are_out_of_memory(size: int) -> None:
    before = figure("num_ooms")
    with pytest.raises(torch.OutOfMemoryError):
        empty(size)
    assert figure("num_ooms") == before + 1
    assert filled(1).sum().item() == MIB


# test_out_of_memory, test_out_of_memory_retry
def test_what_is_cached_is_given_back_before_an_error() -> None:
    with limited(512 * MIB):
        for _ in range(2):
            tensors = [filled(100, value) for value in range(5)]
            with pytest.raises(torch.OutOfMemoryError):
                empty(200 * MIB)
            assert [holds(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 5
            tensors.clear()
            # Of other sizes: it needs what the five had.
            whole = filled(500, 7)
            assert holds(whole, 7)
            del whole


def test_memory_that_one_stream_freed_serves_another_before_an_error() -> None:
    stream = torch.cuda.Stream()
    with limited(256 * MIB):
        with torch.cuda.stream(stream):
            tensor = filled(240, 1)
            torch.cuda._sleep(WHILE // 4)
            tensor.add_(1)
            del tensor
        other = filled(240, 3)
        assert holds(other, 3)
        del other
        torch.cuda.synchronize()


# test_notifies_oom
def test_observers_are_told_once_each() -> None:
    first: list[Any] = []
    second: list[Any] = []
    for told in (first, second):
        torch._C._cuda_attach_out_of_memory_observer(lambda *figures, told=told: told.append(figures[:2]))
    with limited(64 * MIB), pytest.raises(torch.OutOfMemoryError):
        empty(128 * MIB)
    assert first == second == [(0, 128 * MIB)]


# test_max_split_expandable, test_garbage_collect_expandable, test_allocator_settings
@pytest.mark.parametrize(
    "settings",
    ["max_split_size_mb:40", "garbage_collection_threshold:0.5", "expandable_segments:True", "roundup_power2_divisions:4"],
)
def test_settings_while_the_program_runs_do_no_harm(settings: str) -> None:
    with limited(120 * MIB):
        torch._C._accelerator_setAllocatorSettings(settings)
        try:
            tensors = [filled(30, value) for value in range(3)]
            with pytest.raises(torch.OutOfMemoryError):
                empty(80 * MIB)
            assert [holds(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 3
            tensors.clear()
            assert holds(filled(100, 7), 7)
        finally:
            torch._C._accelerator_setAllocatorSettings("")
            torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


# test_allocator_settings
@pytest.mark.parametrize("settings", ["foo:1,bar:2", "garbage_collection_threshold:1.2", "max_split_size_mb:2"])
def test_settings_that_are_wrong_are_refused(settings: str) -> None:
    with pytest.raises(ValueError):
        torch._C._accelerator_setAllocatorSettings(settings)
    torch._C._accelerator_setAllocatorSettings("")


# ---- contents ----------------------------------------------------------------------------------------------------------


# test_allocator_fuzz
def test_random_allocations_keep_their_contents() -> None:
    chance, live, total, made = random.Random(123), list[tuple[int, Any]](), 0, 0

    def free() -> int:
        value, tensor = live.pop(chance.randrange(len(live)))
        assert bool((tensor == value).all())
        return int(tensor.numel())

    for _ in range(2500):
        while total >= 25 * MIB:
            total -= free()
        what = chance.choices(("allocate", "free", "empty"), weights=(1, 1 if live else 0, 0.1))[0]
        if what == "allocate":
            count = chance.randrange(MIB // 2, 5 * MIB)
            live.append((made, torch.full((count,), made, dtype=torch.int32, device="cuda")))
            made, total = made + 1, total + count
        elif what == "free":
            total -= free()
        else:
            torch.cuda.empty_cache()


def test_random_allocations_over_streams_keep_their_contents_under_a_limit() -> None:
    chance, streams = random.Random(7), [torch.cuda.Stream() for _ in range(4)]
    checks: list[Any] = []
    live: list[tuple[int, Any, Any]] = []
    with limited(300 * MIB):
        for step in range(1500):
            home = chance.choice(streams)
            with torch.cuda.stream(home):
                size = chance.choice((1000, 100 * KIB, MIB, 3 * MIB, 20 * MIB)) + chance.randrange(1000)
                live.append((step % 251, home, torch.full((size,), step % 251, dtype=torch.uint8, device="cuda")))
            while sum(tensor.numel() for _, _, tensor in live) > 150 * MIB or (live and chance.random() < 0.4):
                value, home, tensor = live.pop(chance.randrange(len(live)))
                reader = chance.choice(streams)
                reader.wait_stream(home)
                with torch.cuda.stream(reader):
                    if chance.random() < 0.2:
                        torch.cuda._sleep(WHILE // 1000)
                    checks.append((tensor == value).all())
                if reader != home:
                    tensor.record_stream(reader)
                del tensor
        torch.cuda.synchronize()
        assert all(bool(check) for check in checks)
        assert all(holds(tensor, value) for value, _, tensor in live)
        live.clear()
        checks.clear()


# test_record_stream
def test_memory_in_use_by_another_stream_is_not_handed_out() -> None:
    stream, data = torch.cuda.Stream(), torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    result = torch.empty_like(data)
    stream.wait_stream(torch.cuda.current_stream())
    tensor = data.clone()
    address = tensor.data_ptr()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WHILE // 2)
        result.copy_(tensor)
    tensor.record_stream(stream)
    del tensor
    others = [torch.full_like(data, -1.0) for _ in range(4)]
    if not stream.query():
        assert address not in addresses_of(others)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(result, data)


# test_record_stream_on_shifted_view
def test_a_view_records_its_tensors_memory() -> None:
    stream, base = torch.cuda.Stream(), torch.empty(100, 100, device="cuda")
    view = base.as_strided((90, 100), (100, 1), 1000)
    assert view.storage_offset() > 0
    with torch.cuda.stream(stream):
        torch.cuda._sleep(WHILE // 4)
        torch.cuda._sleep(WHILE // 4)
    view.record_stream(stream)
    address = base.data_ptr()
    del base, view
    again = torch.empty(100, 100, device="cuda")
    if not stream.query():
        assert again.data_ptr() != address
    torch.cuda.synchronize()


# test_streaming_backwards_multiple_streams
def test_gradients_over_two_streams_are_right() -> None:
    stream, x = torch.cuda.Stream(), torch.randn(1 << 20, device="cuda", requires_grad=True)
    for _ in range(20):
        x.grad = None
        first = x * 2
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            second = first * 3
            torch.cuda._sleep(WHILE // 1000)
        torch.cuda.current_stream().wait_stream(stream)
        second.record_stream(torch.cuda.current_stream())
        (first + second).sum().backward()
        assert holds(x.grad, 8)
    del first, second


def test_threads_keep_contents_under_a_limit() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        chance, live = random.Random(number), list[tuple[int, Any]]()
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(150):
                    value = (16 * number + step) % 251
                    live.append((value, torch.full((chance.randrange(1, 4 * MIB),), value, dtype=torch.uint8, device="cuda")))
                    if len(live) > 8:
                        value, tensor = live.pop(chance.randrange(len(live)))
                        if not holds(tensor, value):
                            raise AssertionError(f"thread {number}, step {step}")
                        del tensor
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with limited(400 * MIB):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


# ---- pinned memory -----------------------------------------------------------------------------------------------------


# test_caching_pinned_memory
def test_a_pinned_block_is_reused_once_its_copy_is_complete() -> None:
    tensor = torch.ones(MIB, dtype=torch.uint8).pin_memory()
    address = tensor.data_ptr()
    del tensor
    tensor = torch.ones(MIB, dtype=torch.uint8).pin_memory()
    assert tensor.data_ptr() == address
    on_gpu = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(WHILE)
    on_gpu.copy_(tensor, non_blocking=True)
    del tensor
    other = torch.zeros(MIB, dtype=torch.uint8).pin_memory()
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert holds(on_gpu, 1)


# test_pin_memory, test_noncontiguous_pinned_memory
def test_pinned_tensors_of_any_shape_are_copied_right() -> None:
    for shape in ((3, 5), (127, 255), (3 * MIB,), (0,)):
        data = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
        pinned = data.pin_memory()
        assert pinned.is_pinned() and pinned.data_ptr() != data.data_ptr() or not data.numel()
        assert torch.equal(pinned.cuda(non_blocking=True).cpu(), data)
        if len(shape) == 2:
            assert torch.equal(pinned[:, ::2].cuda(non_blocking=True).cpu(), data[:, ::2])


# ---- other processes ---------------------------------------------------------------------------------------------------


def _say(pipe: Any) -> None:
    pipe.send("here")


# test_is_pinned_no_context
def test_a_forked_child_may_end_with_its_parents_tensors() -> None:
    tensor, pinned = filled(4, 9), torch.ones(MIB, pin_memory=True)
    mine, its = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_say, args=(its,))
    child.start()
    assert mine.poll(30) and mine.recv() == "here"
    child.join(30)
    assert child.exitcode == 0
    assert holds(tensor, 9) and bool((pinned == 1).all())


def test_the_whole_gpu_is_used_and_given_back() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    tensors = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            tensors.append(empty(4 * GIB))
    assert sum(tensor.numel() for tensor in tensors) > free - 6 * GIB
    tensors.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free - GIB
