"""Millpond: a GPU memory pool. Stream-ordered allocation that holds no more memory than the program uses.

PyTorch, in two lines before the first use of CUDA::

    import millpond
    millpond.torch.enable()

``millpond.cupy``, ``millpond.rmm`` and ``millpond.numba`` do the same for those libraries; all of them share one pool
for each GPU, and the functions here tell what it does. :class:`Pool` makes further pools, also on the CPU as a device
(``Pool("host")``), for programs that allocate for themselves.
"""

from __future__ import annotations

from ._errors import DeviceError, Error, ForkedError, MisuseError, OutOfMemoryError, RecordingError
from ._millpond import (
    Block,
    Budget,
    Callback,
    CapturePool,
    Capturing,
    DeviceCalls,
    Level,
    OutOfMemory,
    Pool,
    RecordingStatus,
    Residency,
    Shared,
    Stats,
    Stream,
    Tenant,
    __version__,
    configure,
    last_error,
    tag,
)
from ._replay import Replays, replay
from ._shared import (
    empty_cache,
    memory_summary,
    pool,
    record,
    reset_peak,
    snapshot,
    stats,
)
from . import cupy, numba, rmm, torch, vllm

__all__ = [
    "Block",
    "Budget",
    "Callback",
    "CapturePool",
    "Capturing",
    "DeviceCalls",
    "DeviceError",
    "Error",
    "ForkedError",
    "Level",
    "MisuseError",
    "OutOfMemory",
    "OutOfMemoryError",
    "Pool",
    "RecordingError",
    "RecordingStatus",
    "Replays",
    "Residency",
    "Shared",
    "Stats",
    "Stream",
    "Tenant",
    "__version__",
    "configure",
    "cupy",
    "empty_cache",
    "last_error",
    "memory_summary",
    "numba",
    "pool",
    "record",
    "replay",
    "reset_peak",
    "rmm",
    "snapshot",
    "stats",
    "tag",
    "torch",
    "vllm",
]
