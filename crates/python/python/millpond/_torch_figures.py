"""``torch.cuda``'s figures, taken from the pool: PyTorch cannot ask a plugged allocator for them.

Everything that ``torch.cuda`` says of an allocator's memory comes from one nested dictionary, and what
``torch.accelerator`` says from the same without nesting; so these are what is replaced, with the functions that reset
their peaks.
"""

from __future__ import annotations

from typing import Any

from . import _shared
from ._millpond import Level

#: Allocations and frees that ``reset_accumulated_memory_stats`` leaves out, for each GPU.
_ignored: dict[int, tuple[int, int]] = {}


def _stat(level: Level, allocated: int = 0, freed: int = 0) -> dict[str, Any]:
    figures = {"current": level.current, "peak": level.high, "allocated": allocated, "freed": freed}
    nothing = dict.fromkeys(figures, 0)
    return {"all": figures, "small_pool": nothing, "large_pool": dict(nothing)}


def _nothing() -> dict[str, Any]:
    figures = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    return {"all": dict(figures), "small_pool": dict(figures), "large_pool": dict(figures)}


def nested_figures(ordinal: int) -> dict[str, Any]:
    """The pool's figures under PyTorch's names. What has no counterpart is 0, as is the split by block size."""
    figures = _shared.stats(ordinal)
    allocations, frees = _ignored.get(ordinal, (0, 0))
    counts = (figures.allocations - allocations, figures.frees - frees)
    return {
        "allocation": _stat(figures.blocks, *counts),
        "active": _stat(figures.blocks, *counts),
        "segment": _nothing(),
        "inactive_split": _nothing(),
        "requested_bytes": _stat(figures.requested),
        "allocated_bytes": _stat(figures.allocated),
        "active_bytes": _stat(figures.allocated),
        "reserved_bytes": _stat(figures.reserved),
        "inactive_split_bytes": _nothing(),
        "oversize_allocations": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
        "oversize_segments": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
        "num_alloc_retries": figures.retries,
        "num_ooms": figures.out_of_memory,
        "num_sync_all_streams": 0,
        "num_device_alloc": figures.calls.create + figures.calls.alloc,
        "num_device_free": figures.calls.release + figures.calls.free,
        "max_split_size": -1,
    }


def replace_figures(torch: Any) -> None:
    """Lets ``torch.cuda`` and ``torch.accelerator`` answer with the pool's figures."""

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        """The figures of millpond's pool."""
        if not torch.cuda.is_initialized():
            return {}
        return nested_figures(_shared.ordinal_of(device))

    def memory_stats(device_index: Any = None, /) -> Any:
        """The figures of millpond's pool, each under its whole name."""
        return torch.cuda.memory_stats(device_index)

    def reset_peak_memory_stats(device: Any = None) -> None:
        """Lets the high-water marks of millpond's pool start again."""
        _shared.reset_peak(device)

    def reset_accumulated_memory_stats(device: Any = None) -> None:
        """Lets the counts of allocations and frees of millpond's pool start again."""
        figures = _shared.stats(device)
        _ignored[_shared.ordinal_of(device)] = (figures.allocations, figures.frees)

    resets = (reset_peak_memory_stats, reset_accumulated_memory_stats)
    _replace((torch.cuda, torch.cuda.memory), memory_stats_as_nested_dict, *resets)
    # Newer than the rest. With a GPU there, the accelerator is the GPU.
    accelerator: Any = getattr(torch, "accelerator", None)
    if hasattr(accelerator, "memory"):
        _replace((accelerator, accelerator.memory), memory_stats, *resets)


def _replace(modules: tuple[Any, ...], *functions: Any) -> None:
    for module in modules:
        for function in functions:
            setattr(module, function.__name__, function)
