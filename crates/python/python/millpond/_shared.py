"""The pool of each GPU that PyTorch, CuPy and the others share, and what can be asked of it."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any, Literal, Union

from . import _millpond
from ._errors import DeviceError
from ._millpond import Pool, Stats

#: A GPU by its number, as ``"cuda:1"``, or as a ``torch.device``; ``None`` is PyTorch's current one, else the first.
Device = Any
Path = Union[str, "os.PathLike[str]"]


def ordinal_of(device: Device) -> int:
    """The number of a GPU."""
    if device is None:
        return _current()
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        ordinal = _millpond.gpu_ordinal(device)
        if ordinal is not None:
            return ordinal if ":" in device else _current()
    elif getattr(device, "type", None) == "cuda":
        return _current() if device.index is None else int(device.index)
    raise ValueError(f"{device!r} is no GPU: pass its number, 'cuda:N' or a torch.device")


def _current() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return 0


_kept: set[str] = set()


def is_disabled(library: str) -> bool:
    """Whether ``MILLPOND_DISABLE=1`` in the environment leaves a library as it is. That is said once for each library."""
    if os.environ.get("MILLPOND_DISABLE") != "1":
        return False
    if library not in _kept:
        _kept.add(library)
        print(f"millpond: MILLPOND_DISABLE=1: {library} keeps its own allocator", file=sys.stderr)
    return True


def pool(device: Device = None, *, memory: Literal["device", "pinned"] = "device") -> Pool:
    """The pool of a GPU that PyTorch, CuPy and the others of this process share. The first call makes it.

    With ``memory="pinned"`` it is the one of pinned memory near that GPU, with the default options.
    """
    return _millpond.device_pool(ordinal_of(device), memory)


def stats(device: Device = None) -> Stats:
    """What the GPU's pool did and holds."""
    return pool(device).stats()


def reset_peak(device: Device = None) -> None:
    """Lets the high-water marks start again from where the figures are now."""
    pool(device).reset_peak()


def empty_cache(device: Device = None) -> int:
    """Gives memory that nothing uses, pending work included, back to the device. Returns the bytes given back."""
    return pool(device).trim()


@contextlib.contextmanager
def record(path: Path, device: Device = None, *, call_sites: bool = False) -> Iterator[Path]:
    """Records what the pools do meanwhile to a file, for ``millpond.replay``.

    Without a device it records the pools of all GPUs in use, in one file. ``call_sites`` keeps the lines of Python that
    each allocation comes from, which costs microseconds each. A recording that runs already is stopped.
    """
    ordinals = [] if device is not None else _millpond.devices_in_use()
    pools = [pool(ordinal) for ordinal in ordinals] or [pool(device)]
    with contextlib.ExitStack() as stack:
        for each in pools:
            each.start_recording(path, call_sites=call_sites)
            stack.callback(each.stop_recording)
        yield path


def snapshot(path: Path, device: Device = None) -> None:
    """Writes what the GPU's pool holds as a PyTorch snapshot, which pytorch.org/memory_viz opens.

    While a recording runs (:func:`record`, or ``MILLPOND_RECORD``), it has everything since that began; else only what
    is live now.
    """
    write_snapshot(pool(device), path)


def write_snapshot(of: Pool, path: Path) -> None:
    """Writes the snapshot of any pool."""
    if not of.write_snapshot(path):
        # A pool that holds and did nothing.
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [[]]}, file, protocol=4)


def human(size: float) -> str:
    """Bytes for people, in binary units."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1024 or unit == "TiB":
            break
    return f"{size:.2f} {unit}"


def memory_summary(device: Device = None) -> str:
    """The figures of the GPU's pool, as a table to print.

    Where there is no GPU and none is named: those of each :class:`Pool` that lives in this process, or one sentence if none does.
    """
    try:
        return summary(pool(device))
    except DeviceError as error:
        if device is not None:
            raise
        tables = [summary(each) for each in _millpond.live_pools()]
        return "\n\n".join(tables) or f"This process has no pool, and no GPU: {error}."


def summary(of: Pool) -> str:
    """The figures of any pool, as a table to print."""
    figures = of.stats()
    free, total = of.memory_info()
    levels = [
        ("requested", figures.requested),
        ("allocated", figures.allocated),
        ("reserved", figures.reserved),
    ]
    lines = [f"pool '{of.name}' of {of.device}", f"{'':12}{'now':>12}{'at most':>12}"]
    lines += [f"{name:12}{human(level.current):>12}{human(level.high):>12}" for name, level in levels]
    lines.append(f"{'blocks':12}{figures.blocks.current:>12,}{figures.blocks.high:>12,}")
    share = f"{figures.hits / figures.allocations:.3%}" if figures.allocations else "-"
    lines += [
        f"cached {human(figures.cached)}, fragmentation {figures.fragmentation:.1%}",
        f"allocations {figures.allocations:,}, of which {share} found memory ready; frees {figures.frees:,}",
        f"device calls {figures.calls.memory:,}; pages remapped {figures.pages_remapped:,}; "
        f"stream waits {figures.stream_waits:,}; retries {figures.retries:,}; out of memory {figures.out_of_memory:,}",
        f"the device has {human(free)} free of {human(total)}",
    ]
    return "\n".join(lines)
