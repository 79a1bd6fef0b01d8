"""PyTorch's own history of its allocations, as a snapshot that ``millpond replay`` reads.

Each block gets two outermost frames of the file ``tag``: its kind, and its module. ``docs/trace-format.md`` says what these are.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import time
from typing import Any

import torch

from .settings import ANSWER, FOLDER, RANK, REAL

#: More events than a few steps have: PyTorch keeps the last so many.
MOST_EVENTS = 4_000_000

#: Microseconds from one event to the next where nothing was computed: about those of a framework's operators, as
#: ``crates/replay/src/replay/program.rs`` has it.
EACH_US = 10

#: From PyTorch 2.10 on, it keeps a text with each allocation.
SET_METADATA = getattr(torch._C, "_cuda_setMemoryMetadata", None)

#: Frames of a call stack that are kept: the innermost.
MOST_FRAMES = 48

#: What a block is if nobody says better, by the phase in which it was allocated.
BY_PHASE = {
    "setup": "other",
    "forward": "activation",
    "recompute": "activation",
    "backward": "activation gradient",
    "optimizer": "optimizer temporary",
    "workspace": "workspace",
}

#: A block that is several of these is the first.
KINDS = ("workspace", "parameter", "optimizer state", "gradient")


class Recording:
    """The history, and what was noted beside it: which addresses were parameters, gradients and so on, and when."""

    def __init__(self) -> None:
        self.phase = ""
        self.module = ""
        #: After so many allocations of a device: the kind and name of what lies at an address.
        self.notes: dict[int, list[tuple[int, dict[int, tuple[str, str]]]]] = {}
        #: Each with its time, or, in a prediction, with how many allocations and frees there were before it.
        self.phases: list[dict[str, Any]] = []
        #: After so many allocations of a device: the phase and the module, where PyTorch does not keep them.
        self.marks: dict[int, list[tuple[int, str]]] = {}
        #: The most that PyTorch's allocator counted on one device, before a program reset that.
        self.peaks: dict[str, int] = {}

    def begin(self) -> None:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MOST_EVENTS
        )
        for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
            if hasattr(torch._C, name):
                setattr(torch._C, name, keep_history)
        self.keep_figures()
        self.set("setup", "")

    def keep_figures(self) -> None:
        """A program may reset the figures of PyTorch's allocator, which are asked for at the end."""

        def reset_peaks(*_args: Any, **_kwargs: Any) -> None:
            self.keep_peaks()
            reset(*_args, **_kwargs)

        reset = torch._C._cuda_resetPeakMemoryStats
        torch._C._cuda_resetPeakMemoryStats = reset_peaks
        if hasattr(torch._C, "_accelerator_resetPeakStats"):
            torch._C._accelerator_resetPeakStats = reset_peaks
        # How many allocations there were is never reset: marks and notes go by it.
        for name in ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"):
            if hasattr(torch._C, name):
                setattr(torch._C, name, lambda *_args, **_kwargs: None)

    def keep_peaks(self) -> None:
        for device in range(torch.cuda.device_count()):
            for name, bytes in peaks_of(device).items():
                self.peaks[name] = max(self.peaks.get(name, 0), bytes)

    def set(self, phase: str, module: str) -> None:
        """What is allocated from here on belongs to this phase and this module."""
        if (phase, module) != (self.phase, self.module):
            if phase != self.phase and "workspace" not in (phase, self.phase):
                self.enter(phase)
            self.phase, self.module = phase, module
            if SET_METADATA is not None:
                SET_METADATA(f"{phase}|{module}")
            elif torch.cuda.is_initialized():
                device = torch.cuda.current_device()
                self.marks.setdefault(device, []).append((allocations(device), f"{phase}|{module}"))

    def enter(self, phase: str) -> None:
        """Notes when one phase ends and the next begins. A recompute is part of a backward."""
        phase = "backward" if phase == "recompute" else phase
        if self.phases and self.phases[-1]["name"] == phase:
            return
        now = time.time_ns() // 1000 if REAL else calls()
        if self.phases:
            self.phases.append({**self.phases[-1], "stage": "END", "time_us": now})
        self.phases.append({"stage": "START", "name": phase, "device": 0, "time_us": now})

    def note(self, tensors: list[tuple[Any, str, str]]) -> None:
        """Notes of each tensor on a card its kind and its module."""
        by_device: dict[int, dict[int, tuple[str, str]]] = {}
        for tensor, kind, module in tensors:
            for part in parts(tensor):
                if part.is_cuda:
                    by_device.setdefault(part.device.index, {})[part.untyped_storage().data_ptr()] = (kind, module)
        for device, found in by_device.items():
            self.notes.setdefault(device, []).append((allocations(device), found))

    def write(self) -> None:
        """Writes the snapshot, and the figures of PyTorch's allocator. Nothing where the program allocated nothing."""
        counts = [allocations(device) for device in range(torch.cuda.device_count())]
        if not any(counts):
            return
        self.keep_peaks()
        if REAL:
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            ANSWER.figures["outside"] = total - free - torch.cuda.memory_reserved()
        snapshot = torch.cuda.memory._snapshot()
        workspaces = workspace_addresses()
        for device, events in enumerate(snapshot["device_traces"]):
            marks = self.marks.get(device)
            if marks:
                mark(events, marks)
            recorded = sum(event["action"] == "alloc" for event in events)
            if recorded < counts[device]:
                ANSWER.say_first(
                    f"the program allocated {counts[device]:,} times, and the history has the last {recorded:,}: it may need more than "
                    "what follows; name fewer --steps"
                )
            Kinds(events, self.notes.get(device, []), workspaces).tag()
            if not REAL:
                starts = without_times(events)
                if device == torch.cuda.current_device():
                    for phase in self.phases:
                        phase["time_us"] = starts[min(phase["time_us"], len(starts) - 1)]
        for event in snapshot["device_traces"]:
            for one in event:
                one.pop("compile_context", None)
                one.pop("user_metadata", None)
        kept = {key: snapshot[key] for key in ("device_traces", "allocator_settings") if key in snapshot}
        kept["segments"] = []
        device = torch.cuda.current_device()
        kept["external_annotations"] = [{**phase, "device": device} for phase in self.phases[:-1]]
        path = os.path.join(FOLDER, f"{os.getpid()}.pickle")
        with open(path, "wb") as file:
            pickle.dump(kept, file, protocol=4)
        ANSWER.figures |= {
            "recording": path,
            "torch": torch.__version__,
            "rank": RANK,
            **self.peaks,
        }


def keep_history(enabled: Any = None, *_args: Any, **_kwargs: Any) -> None:
    """Stands for what begins and ends a history: this one goes on as it is, and a program's own dump has all of it."""
    if enabled:
        ANSWER.remark("the program records its own memory history: it gets that of the prediction, which has all events")


def peaks_of(device: int) -> dict[str, int]:
    """What PyTorch's allocator counted at most on a device."""
    stats = torch._C._cuda_memoryStats(device)
    names = {"peak_requested": "requested_bytes", "peak_allocated": "allocated_bytes", "peak_reserved": "reserved_bytes"}
    return {name: int(stats[counted]["all"]["peak"]) if stats else 0 for name, counted in names.items()}


def allocations(device: int) -> int:
    """How many there were on a device."""
    stats = torch._C._cuda_memoryStats(device)
    return int(stats["allocation"]["all"]["allocated"]) if stats else 0


def calls() -> int:
    """How many allocations and frees there were on the current device."""
    stats = torch._C._cuda_memoryStats(torch.cuda.current_device()) if torch.cuda.is_initialized() else None
    return sum(int(stats["allocation"]["all"][what]) for what in ("allocated", "freed")) if stats else 0


def without_times(events: list[Any]) -> list[int]:
    """Puts what a replay does of a prediction ``EACH_US`` apart: how long the host took says nothing of the job, and differs each
    time. Returns the time of each call, and of the end."""
    now, starts = 0, []
    for event in events:
        event["time_us"] = now
        if event["action"] in ("alloc", "free_requested"):
            starts.append(now)
        if event["action"] in ("alloc", "free_completed"):
            now += EACH_US
    return [*starts, now]


def mark(events: list[Any], marks: list[tuple[int, str]]) -> None:
    """Gives each allocation the phase and the module of the last mark before it."""
    at, number = 0, 0
    for event in events:
        if event["action"] == "alloc":
            while at + 1 < len(marks) and marks[at + 1][0] <= number:
                at += 1
            event["user_metadata"] = marks[at][1]
            number += 1


class Kinds:
    """The kind and the module of each block of one device."""

    def __init__(self, events: list[Any], notes: list[Any], workspaces: set[int]) -> None:
        self.events, self.notes, self.workspaces = events, notes, workspaces
        self.frames: dict[tuple[str, str], dict[str, Any]] = {}

    def tag(self) -> None:
        """Appends the tags to the call stack of each allocation."""
        owner: dict[int, tuple[str, str]] = {}
        live: dict[int, int] = {}
        notes, allocations = iter(self.notes), 0
        note = next(notes, None)
        allocs = [event for event in self.events if event["action"] == "alloc"]
        for number, event in enumerate(allocs):
            while note is not None and note[0] <= allocations:
                self.apply(note[1], live, owner)
                note = next(notes, None)
            live[event["addr"]] = number
            allocations += 1
        while note is not None:
            self.apply(note[1], live, owner)
            note = next(notes, None)
        for number, event in enumerate(allocs):
            phase, _, module = (event.get("user_metadata") or "setup|").partition("|")
            kind, module = owner.get(number, (BY_PHASE.get(phase, "other"), module))
            if event["addr"] in self.workspaces and kind not in KINDS:
                kind, module = "workspace", "cuBLAS"
            tags = [self.tag_of(module)] if module else []
            frames = [frame for frame in event["frames"] if "millpond_predict" not in frame["filename"]]
            event["frames"] = frames[:MOST_FRAMES] + tags + [self.tag_of(kind)]

    def apply(self, found: dict[int, tuple[str, str]], live: dict[int, int], owner: dict[int, tuple[str, str]]) -> None:
        for address, (kind, module) in found.items():
            number = live.get(address)
            if number is None:
                continue
            before = owner.get(number)
            if before is None or KINDS.index(kind) < KINDS.index(before[0]):
                owner[number] = (kind, module)

    def tag_of(self, name: str) -> dict[str, Any]:
        return self.frames.setdefault((name, ""), {"name": name, "filename": "tag", "line": 0})


def parts(tensor: Any) -> list[Any]:
    """The tensors that a tensor is made of: one of several devices or of shards has its own inside."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return parts(local)
    # The parameters of a lazy module have no memory before its first forward.
    if not isinstance(tensor, torch.Tensor) or torch.nn.parameter.is_lazy(tensor):
        return []
    # Inside of torch.func's vmap and grad, a tensor stands for another, which has the memory.
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return parts(torch._C._functorch.get_unwrapped(tensor))
    if tensor.is_sparse:
        return [tensor._indices(), tensor._values()]
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(tensor, name))]
    return [tensor]


def workspace_addresses() -> set[int]:
    """The workspaces that PyTorch gave to cuBLAS."""
    try:
        card = ctypes.CDLL(None).millpond_card_workspace
    except AttributeError:
        return set()
    card.restype, card.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    found: set[int] = set()
    while address := card(len(found)):
        found.add(address)
    return found
