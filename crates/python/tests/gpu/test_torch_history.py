"""PyTorch's history and snapshots of memory, and the pictures that `torch.cuda._memory_viz` makes of them.

The comments name the tests of PyTorch's test_cuda.py that assert the same.
"""

from __future__ import annotations

import gc
import json
import pickle
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tensors import MIB, VERSION, empty, filled, history, limited, live_in  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("native_interface", "nothing_is_broken")]

SHAPE = (311, 411)
SIZE = 311 * 411 * 4
ACTIONS = {
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "workspace_snapshot",
}


def snapshot() -> dict[str, Any]:
    taken: dict[str, Any] = torch.cuda.memory._snapshot()
    return taken


def blocks_of(taken: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """The live blocks for which so many bytes were asked."""
    blocks = (block for segment in taken["segments"] for block in segment["blocks"])
    return [block for block in blocks if block["requested_size"] == size and block["state"] == "active_allocated"]


def events_of(taken: dict[str, Any]) -> list[dict[str, Any]]:
    return list(taken["device_traces"][0])


# test_memory_snapshot
def test_a_snapshot_names_the_lines_that_allocated_its_blocks() -> None:
    torch.cuda.empty_cache()
    with history(enabled="state", stacks="python"):
        gone, kept = torch.rand(310, 410, device="cuda"), torch.rand(*SHAPE, device="cuda")
        tensors = [torch.rand(128, device="cuda") for _ in range(300)]
        chance = random.Random(1)
        while tensors:
            del tensors[chance.randrange(len(tensors))]
        del gone
        taken = snapshot()
    assert all("frames" in segment for segment in taken["segments"])
    [block] = blocks_of(taken, SIZE)
    assert block["address"] == kept.untyped_storage().data_ptr()
    frames = block["frames"]
    assert any(Path(__file__).name in frame["filename"] for frame in frames)
    assert "test_a_snapshot_names_the_lines_that_allocated_its_blocks" in {frame["name"] for frame in frames}
    assert all(frame["line"] >= 0 for frame in frames)


# test_memory_snapshot_with_cpp
def test_a_snapshot_has_stacks_of_cpp() -> None:
    with history(enabled="state", stacks="all"):
        kept = torch.rand(*SHAPE, device="cuda")
        [block] = blocks_of(snapshot(), SIZE)
    assert "::rand" in str(block["frames"])
    assert Path(__file__).name in str(block["frames"])
    del kept


# test_memory_snapshot_script
def test_a_snapshot_names_functions_of_torchscript() -> None:
    @torch.jit.script
    def scripted():  # type: ignore[no-untyped-def]
        return torch.rand(311, 411, device="cuda")

    with history(enabled="state", stacks="python"):
        kept = scripted()
        [block] = blocks_of(snapshot(), SIZE)
    assert block["frames"][0]["name"] == "scripted"
    del kept


# test_memory_snapshot
def test_a_snapshot_is_as_its_readers_expect(tmp_path: Path) -> None:
    with history(stacks="python"):
        kept = [filled(mib) for mib in (1, 3, 21)]
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    taken = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert {"segments", "device_traces", "allocator_settings"} <= taken.keys()
    for segment in taken["segments"]:
        names = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"}
        assert names | {"segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"} <= segment.keys()
        assert segment["segment_type"] in ("small", "large")
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at and block["requested_size"] <= block["size"]
            assert block["state"] in ("active_allocated", "active_awaiting_free", "active_pending_free", "inactive")
            at += block["size"]
        active = sum(block["size"] for block in segment["blocks"] if block["state"] != "inactive")
        assert segment["active_size"] == active
    assert {tensor.data_ptr() for tensor in kept} <= set(live_in(taken["segments"]))
    events = events_of(taken)
    assert {event["action"] for event in events} <= ACTIONS
    assert all({"action", "size", "stream", "time_us"} <= event.keys() for event in events)
    times = [event["time_us"] for event in events]
    assert times == sorted(times) and abs(times[-1] / 1e6 - time.time()) < 600


# test_memory_plots
@pytest.mark.parametrize(("context", "stacks"), [("all", "all"), ("all", "python"), (None, "python")])
def test_memory_viz_draws_the_history(context: str | None, stacks: str) -> None:
    from torch.cuda import _memory_viz

    torch.cuda.empty_cache()
    with history(context=context, stacks=stacks):
        x = torch.rand(128, 128, device="cuda")
        x * x + x * x
        del x
        taken = snapshot()
    # A picture leaves out what it does not show, also from what it is given.
    text = json.dumps(taken)
    for picture in (_memory_viz.trace_plot(taken), _memory_viz.trace_plot(taken, filter_freed=True)):
        assert picture.startswith("\n<!DOCTYPE html>") or "<html" in picture
    assert "<html" in _memory_viz.segment_plot(taken)
    assert ("test_memory_viz_draws_the_history" in text) == (context is not None)
    assert ("::rand" in text) == (stacks == "all")
    assert str(128 * 128 * 4) in text


# test_memory_snapshot
def test_memory_viz_writes_what_is_in_use() -> None:
    from torch.cuda import _memory_viz

    # To draw what it has written, it takes a script from the network.
    def as_it_is(text: str) -> str:
        return text

    with history(stacks="python"):
        kept = torch.rand(*SHAPE, device="cuda")
        taken = snapshot()
    assert Path(__file__).name in _memory_viz.segments(taken, as_it_is)
    assert Path(__file__).name in _memory_viz.memory(taken, as_it_is)
    assert "entries" in _memory_viz.trace(taken)
    del kept


# test_memory_plots_free_stack
@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_stacks_are_of_what_was_asked_for(context: str) -> None:
    tensors: list[Any] = []

    def the_allocation() -> None:
        tensors.append(torch.rand(3, 4, device="cuda"))

    def the_free() -> None:
        tensors.clear()

    torch.cuda.empty_cache()
    with history(context=context):
        the_allocation()
        the_free()
        text = json.dumps(snapshot())
    assert ("the_free" in text) == (context == "all")
    assert ("the_allocation" in text) == (context != "state")


# test_memory_plots_history_context
def test_stacks_are_switched_on_and_off_while_history_is_recorded() -> None:
    tensors: list[Any] = []

    def first() -> None:
        tensors.append(torch.rand(4, 4, device="cuda"))

    def unseen() -> None:
        tensors.append(torch.rand(3, 4, device="cuda"))

    def last() -> None:
        tensors.append(torch.rand(4, 4, device="cuda"))

    with history(context="all", stacks="python"):
        first()
        torch.cuda.memory._record_memory_history(context=None)
        unseen()
        torch.cuda.memory._record_memory_history(context="all", stacks="python")
        last()
        text = json.dumps(snapshot())
    assert [f'"{name}"' in text for name in ("first", "unseen", "last")] == [True, False, True]


# test_memory_snapshot
def test_an_emptied_cache_is_in_the_history() -> None:
    torch.cuda.empty_cache()
    with history(context="all"):
        tensor = filled(64)
        address = tensor.data_ptr()
        del tensor
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        events = events_of(snapshot())
    taken, given = (
        [event for event in events if event["action"] in actions]
        for actions in (("segment_alloc", "segment_map"), ("segment_free", "segment_unmap"))
    )
    for segments in (taken, given):
        assert any(event["addr"] <= address < event["addr"] + event["size"] for event in segments)


# test_memory_plots_free_segment_stack
@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_an_emptied_cache_has_the_stack_of_who_emptied_it(context: str) -> None:
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    with history(context=context, clear_history=True):
        tensor = filled(64)
        del tensor
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        given = [event for event in events_of(snapshot()) if event["action"] in ("segment_free", "segment_unmap")]
    assert given and ("empty_cache" in json.dumps(given)) == (context == "all")


# test_cpp_memory_snapshot_pickle
def test_the_last_event_is_what_came_before_the_snapshot() -> None:
    with history(context=None, clear_history=True):
        tensor = empty(3 * MIB)
        first, second = events_of(snapshot()), events_of(snapshot())
    assert (first[-1]["action"], first[-1]["size"]) == ("alloc", 3 * MIB)
    assert [event["action"] for event in second[len(first) :]] == ["snapshot"]
    del tensor


# test_memory_plots_metadata
@pytest.mark.skipif(VERSION < (2, 10), reason="PyTorch has it since 2.10")
@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_each_event_has_the_programs_metadata(context: str) -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory._set_memory_metadata("a test of metadata")
    try:
        assert torch.cuda.memory._get_memory_metadata() == "a test of metadata"
        with history(context=context, clear_history=True):
            tensor = torch.rand(3, 4, device="cuda")
            del tensor
            torch.cuda.empty_cache()
            torch.cuda.memory._set_memory_metadata("")
            events = events_of(snapshot())
    finally:
        torch.cuda.memory._set_memory_metadata("")
    of_tensors = [event for event in events if event["action"] in ("alloc", "free_requested", "free_completed")]
    assert of_tensors
    assert {event["user_metadata"] for event in of_tensors} == {"a test of metadata"}


# test_memory_snapshot_skip_actions
@pytest.mark.skipif(VERSION < (2, 11), reason="PyTorch has it since 2.11")
@pytest.mark.parametrize("left_out", [["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None])
def test_actions_are_left_out_of_the_history(left_out: list[str] | None) -> None:
    with history(context="all", stacks="python", skip_actions=left_out, clear_history=True):
        tensor = torch.rand(128, 128, device="cuda")
        del tensor
        torch.cuda.synchronize()
        actions = {event["action"] for event in events_of(snapshot())}
    assert actions and not actions & set(left_out or ())
    assert {"alloc", "free_requested", "free_completed"} - set(left_out or ()) <= actions


# test_memory_compile_regions
def test_events_name_the_compiled_region() -> None:
    pytest.importorskip("triton")

    class Branches(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return self.second(x + 1 if x.sum() > 0 else x - 1)

    model, entry = torch.compile(Branches().cuda()), torch.randn(1, 10, device="cuda")
    with history(context="all", compile_context=True):
        model(entry)
        regions = [event["compile_context"] for event in events_of(snapshot())]
    assert {"Torch-Compiled Region: 0/0"} <= set(regions) <= {"N/A", *(f"Torch-Compiled Region: {at}/0" for at in range(3))}


# test_notifies_oom
def test_an_out_of_memory_is_in_the_history() -> None:
    with history(stacks="python", clear_history=True), limited(64 * MIB):
        with pytest.raises(torch.OutOfMemoryError):
            empty(128 * MIB)
        failed = [event for event in events_of(snapshot()) if event["action"] == "oom"]
    assert [event["size"] for event in failed] == [128 * MIB]
    assert "device_free" in failed[0]
    assert any(frame["name"] == "empty" for frame in failed[0]["frames"])


def test_the_latest_events_are_kept() -> None:
    with history(context=None, max_entries=100, clear_history=True):
        for at in range(1000):
            empty(1024 * (1 + at % 7))
        last = empty(3 * MIB)
        events = events_of(snapshot())
    assert len(events) == 100
    allocations = [event for event in events if event["action"] == "alloc"]
    assert allocations[-1]["addr"] == last.data_ptr() and allocations[-1]["size"] == 3 * MIB


def test_history_is_recorded_while_threads_allocate() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for at in range(200):
                    tensor = empty(1000 + 512 * at)
                    del tensor
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with history(stacks="python", clear_history=True):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            snapshot()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        events = events_of(snapshot())
    assert not failures
    counts = [sum(event["action"] == action for event in events) for action in ("alloc", "free_requested")]
    assert counts == [1600, 1600]


def test_what_is_not_recorded_is_not_in_a_snapshot() -> None:
    with history(stacks="python"):
        empty(MIB)
    kept = torch.rand(*SHAPE, device="cuda")
    taken = snapshot()
    assert events_of(taken) == []
    [block] = blocks_of(taken, SIZE)
    assert not block.get("frames")
    del kept


# test_memory_profiler_viz
def test_the_profiler_draws_memory_with_its_category() -> None:
    from torch.cuda import _memory_viz

    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profiler:
        x = torch.rand(128, 128, device="cuda")
        x * x + x * x
    assert "<html" in _memory_viz.profile_plot(profiler)
    text = json.dumps(_memory_viz._profile_to_snapshot(profiler))
    assert Path(__file__).name in text
    assert "test_the_profiler_draws_memory_with_its_category" in text and "category" in text
    del x


# test_cycles
def test_a_tensor_in_a_cycle_is_found() -> None:
    viz = pytest.importorskip("torch.utils.viz._cycles")
    pages: list[str] = []
    disarm = viz.observe_tensor_cycles(pages.append)
    try:

        def cycle() -> Any:
            tensor = torch.empty(3, 4, device="cuda")

            def calls_itself(again: bool) -> Any:
                return calls_itself(not again) if again else tensor

            return calls_itself

        cycle()
        gc.collect()
        str(1)  # the observer runs with the next call
    finally:
        disarm()
    assert pages and "torch.Tensor" in pages[0] and "cell_contents" in pages[0]
