"""CuPy's allocator: ``millpond.cupy.enable()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from . import _millpond, _shared
from ._millpond import Pool, Stream

if TYPE_CHECKING:
    from ._options import Options

_pools: dict[int, Pool] = {}

#: By GPU, the pool of pinned memory, and the stream that its blocks are allocated on.
_pinned: dict[int, tuple[Pool, Stream]] = {}


def allocate(size: int) -> Any:
    """Allocates for CuPy, on its current device and for work on its current stream.

    What ``cupy.cuda.set_allocator`` and ``cupy.cuda.using_allocator`` take. The block is freed in the order of that
    stream with the last array that uses it, and keeps the stream alive until then.
    """
    import cupy

    ordinal = cupy.cuda.runtime.getDevice()
    pool = _pools.get(ordinal)
    if pool is None:
        pool = _pools[ordinal] = _shared.pool(ordinal)
    block = pool.allocate(size, cupy.cuda.get_current_stream())
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.ptr, size, block, ordinal), 0)


def allocate_pinned(size: int) -> Any:
    """Allocates pinned memory for CuPy, near its current device.

    What ``cupy.cuda.set_pinned_memory_allocator`` takes. CuPy keeps the memory until its own copies are done. Whoever gives
    work with it to a stream keeps it until that is done, as with CuPy's own pool.
    """
    import cupy

    ordinal = cupy.cuda.runtime.getDevice()
    pinned = _pinned.get(ordinal)
    if pinned is None:
        pool = _shared.pool(ordinal, memory="pinned")
        pinned = _pinned[ordinal] = (pool, pool.create_stream())
    pool, stream = pinned
    # Nothing is ever given to the stream: what is freed may be used by the host at once.
    return cupy.cuda.PinnedMemoryPointer(pool.allocate(size, stream), 0)


def enable(*, pinned: bool = False, **options: Unpack[Options]) -> None:
    """Makes millpond CuPy's allocator, on all GPUs. The options are those of :class:`millpond.Pool`.

    With ``pinned``, CuPy's pinned memory is millpond's as well: ``millpond.pool(0, memory="pinned")`` has its figures.

    What CuPy's own pool caches stays with it until ``cupy.get_default_memory_pool().free_all_blocks()``.
    """
    import cupy

    if options:
        _millpond.configure(**options)
    cupy.cuda.set_allocator(allocate)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(allocate_pinned)
