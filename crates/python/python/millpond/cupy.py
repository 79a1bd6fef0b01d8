"""CuPy's allocator: ``millpond.cupy.enable()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from . import _millpond, _shared
from ._millpond import Pool

if TYPE_CHECKING:
    from ._options import Options

_pools: dict[int, Pool] = {}


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


def enable(**options: Unpack[Options]) -> None:
    """Makes millpond CuPy's allocator, on all GPUs. The options are those of :class:`millpond.Pool`.

    What CuPy's own pool caches stays with it until ``cupy.get_default_memory_pool().free_all_blocks()``.
    """
    import cupy

    if options:
        _millpond.configure(**options)
    cupy.cuda.set_allocator(allocate)
