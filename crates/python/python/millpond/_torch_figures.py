"""``torch.cuda``'s figures, taken from the pool: PyTorch cannot ask a plugged allocator for them.

Everything that ``torch.cuda`` says of an allocator's memory comes from one nested dictionary, and what
``torch.accelerator`` says from the same without nesting; so these are what is replaced, with the functions that reset
their peaks.
"""

from __future__ import annotations

from typing import Any

from . import _shared
from ._millpond import Level, Pool, Stats

#: Allocations and frees that ``reset_accumulated_memory_stats`` leaves out, for each GPU.
_ignored: dict[int, tuple[int, int]] = {}


def _stat(level: Level, allocated: int = 0, freed: int = 0) -> dict[str, Any]:
    figures = {"current": level.current, "peak": level.high, "allocated": allocated, "freed": freed}
    nothing = dict.fromkeys(figures, 0)
    return {"all": figures, "small_pool": nothing, "large_pool": dict(nothing)}


def _nothing() -> dict[str, Any]:
    figures = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    return {"all": dict(figures), "small_pool": dict(figures), "large_pool": dict(figures)}


def _pools(device: Any) -> list[Pool]:
    """The GPU's pool, and those of its tags."""
    pool = _shared.pool(device)
    return [pool, *(pool.tagged(tag) for tag in pool.tags)]


def _allocations_and_frees(figures: list[Stats]) -> tuple[int, int]:
    return sum(each.allocations for each in figures), sum(each.frees for each in figures)


def nested_figures(ordinal: int) -> dict[str, Any]:
    """The pool's figures under PyTorch's names, with those of its tags. A peak is the sum of their peaks.

    What has no counterpart is 0, as is the split by block size.
    """
    figures = [pool.stats() for pool in _pools(ordinal)]

    def total(name: str) -> Level:
        levels = [getattr(each, name) for each in figures]
        return Level({"current": sum(level.current for level in levels), "high": sum(level.high for level in levels)})

    (made, freed), ignored = _allocations_and_frees(figures), _ignored.get(ordinal, (0, 0))
    counts = (made - ignored[0], freed - ignored[1])
    calls = [each.calls for each in figures]
    return {
        "allocation": _stat(total("blocks"), *counts),
        "active": _stat(total("blocks"), *counts),
        "segment": _nothing(),
        "inactive_split": _nothing(),
        "requested_bytes": _stat(total("requested")),
        "allocated_bytes": _stat(total("allocated")),
        "active_bytes": _stat(total("allocated")),
        "reserved_bytes": _stat(total("reserved")),
        "inactive_split_bytes": _nothing(),
        "oversize_allocations": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
        "oversize_segments": dict.fromkeys(("current", "peak", "allocated", "freed"), 0),
        "num_alloc_retries": sum(each.retries for each in figures),
        "num_ooms": sum(each.out_of_memory for each in figures),
        "num_sync_all_streams": 0,
        "num_device_alloc": sum(each.create + each.alloc for each in calls),
        "num_device_free": sum(each.release + each.free for each in calls),
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
        for pool in _pools(device):
            pool.reset_peak()

    def reset_accumulated_memory_stats(device: Any = None) -> None:
        """Lets the counts of allocations and frees of millpond's pool start again."""
        _ignored[_shared.ordinal_of(device)] = _allocations_and_frees([pool.stats() for pool in _pools(device)])

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
