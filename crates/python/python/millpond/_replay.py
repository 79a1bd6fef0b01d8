"""What a recorded job's memory did, and what other allocators would have held: ``millpond replay`` as a function."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal, Optional, Union

from . import _html, _millpond

_Path = Union[str, "os.PathLike[str]"]
_Size = Union[int, str]
_Names = Union[str, Sequence[str]]


class Replays(list[dict[str, Any]]):
    """What :func:`replay` returns: a dict for each GPU in the trace. Jupyter shows it as tables."""

    def _repr_html_(self) -> str:
        return _html.of_replays(self)


def replay(
    trace: _Path,
    *,
    allocator: Optional[_Names] = None,
    capacity: Optional[_Size] = None,
    card: Optional[_Names] = None,
    device: Optional[str] = None,
    verify: bool = False,
    free: Optional[Literal["completed", "requested"]] = None,
    page_sizes: Optional[tuple[_Size, _Size]] = None,
    alloc_conf: Optional[str] = None,
    context: Optional[_Size] = None,
    report: Optional[_Path] = None,
    export_snapshot: Optional[_Path] = None,
    export_counters: Optional[_Path] = None,
) -> Replays:
    """Replays a trace: what its memory did, what each allocator would have held, and on which cards the job would run.

    Returns what ``millpond replay TRACE --json -`` writes: a list with a dict for each GPU in the trace, which Jupyter shows as
    tables. The options are the command's, and ``millpond replay --help`` says what they do. Remarks about the trace are warnings. Only
    ``device="cuda"`` needs a GPU.

    Args:
        trace: a snapshot of PyTorch's, an RMM log or a recording of millpond's, compressed or not.
        allocator: names of allocators. All by default.
        capacity: memory of the simulated device.
        card: cards to look at, such as ``["4090", "24GiB"]``.
        device: where to replay: ``"sim"`` by default.
        verify: on a real device, mark every block and check the marks.
        free: when a block that other streams used is freed.
        page_sizes: the smallest and the largest page of millpond's pool.
        alloc_conf: settings of PyTorch's allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``.
        context: what the driver's context and the libraries take of each card.
        report: a file for a page with charts.
        export_snapshot: a file for what was read, as a snapshot of PyTorch's.
        export_counters: a file for what was requested and reserved over time, for ui.perfetto.dev.

    Raises:
        OSError: where the trace cannot be opened.
        ValueError: for options that make no sense.
        RecordingError: where the trace cannot be read.
    """
    # Python's own error names the file.
    with open(trace, "rb"):
        pass
    path = os.fspath(trace)
    # Neither an option nor standard input, whatever its name.
    arguments: list[str] = [os.path.join(".", path) if path.startswith("-") else path]
    options: dict[str, Any] = {
        "allocator": allocator,
        "capacity": capacity,
        "card": card,
        "device": device,
        "verify": verify,
        "free": free,
        "page-sizes": None if page_sizes is None else "..".join(map(str, page_sizes)),
        "alloc-conf": alloc_conf,
        "context": context,
        "report": report,
        "export-snapshot": export_snapshot,
        "export-counters": export_counters,
    }
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            arguments.append(f"--{name}={_text(value)}")
    results, remarks = _millpond.replay_as_json(arguments)
    for remark in remarks:
        warnings.warn(remark, stacklevel=2)
    return Replays(json.loads(results))


def _text(value: Any) -> str:
    """An option's value as the command takes it."""
    if isinstance(value, (str, int, os.PathLike)):
        return str(value)
    return ",".join(map(str, value))
