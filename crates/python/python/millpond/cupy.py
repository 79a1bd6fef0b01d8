"""CuPy's allocator: ``millpond.cupy.enable()``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Optional, Unpack

from . import _millpond, _shared
from ._errors import OutOfMemoryError
from ._millpond import Pool, Stream

if TYPE_CHECKING:
    from ._options import Options

_pools: dict[int, Pool] = {}

_OF_SEVERAL = (
    "CuPy uses memory of two GPUs with millpond: a copy between them on default streams may begin before what was computed there is "
    "done, and kernels of a GPU that has allocated nothing cannot use the other one's arrays. Synchronize both GPUs before such a copy, or "
    "use CuPy's own allocator: cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)"
)

#: By GPU, the pool of pinned memory, and the stream that its blocks are allocated on.
_pinned: dict[int, tuple[Pool, Stream]] = {}


def _ordinal() -> int:
    """CuPy's current device."""
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def _pool(ordinal: int) -> Pool:
    pool = _pools.get(ordinal)
    if pool is None:
        pool = _pools[ordinal] = _shared.pool(ordinal)
        if len(_pools) == 2:
            warnings.warn(_OF_SEVERAL, RuntimeWarning, stacklevel=3)
    return pool


def _pinned_pool(ordinal: int) -> tuple[Pool, Stream]:
    pinned = _pinned.get(ordinal)
    if pinned is None:
        pool = _shared.pool(ordinal, memory="pinned")
        pinned = _pinned[ordinal] = (pool, pool.create_stream())
    return pinned


#: The class of errors that are millpond's and CuPy's, once there was one.
_error: Any = None


def _out_of_memory(error: OutOfMemoryError) -> Any:
    """The error for programs that catch CuPy's, too."""
    global _error
    if _error is None:
        import cupy

        class CupyOutOfMemoryError(OutOfMemoryError, cupy.cuda.memory.OutOfMemoryError):  # type: ignore[misc]
            def __init__(self, message: str) -> None:
                # CuPy's makes a message of its own.
                MemoryError.__init__(self, message)

        _error = CupyOutOfMemoryError
    return _error(str(error))


def allocate(size: int) -> Any:
    """Allocates for CuPy, on its current device and for work on its current stream.

    What ``cupy.cuda.set_allocator`` and ``cupy.cuda.using_allocator`` take. The block is freed in the order of that
    stream with the last array that uses it, and keeps the stream alive until then.
    """
    import cupy

    ordinal = _ordinal()
    try:
        block = _pool(ordinal).allocate(size, cupy.cuda.get_current_stream())
    except OutOfMemoryError as error:
        raise _out_of_memory(error) from None
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.ptr, size, block, ordinal), 0)


def allocate_pinned(size: int) -> Any:
    """Allocates pinned memory for CuPy, near its current device.

    What ``cupy.cuda.set_pinned_memory_allocator`` takes. CuPy keeps the memory until its own copies are done. Whoever gives
    work with it to a stream keeps it until that is done, as with CuPy's own pool.
    """
    import cupy

    pool, stream = _pinned_pool(_ordinal())
    try:
        # Nothing is ever given to the stream: what is freed may be used by the host at once.
        block = pool.allocate(size, stream)
    except OutOfMemoryError as error:
        raise _out_of_memory(error) from None
    return cupy.cuda.PinnedMemoryPointer(block, 0)


class MemoryPool:
    """The pools of the GPUs, with the methods of ``cupy.cuda.MemoryPool``: for programs that look at CuPy's pool.

    Each method is about CuPy's current device. All objects of the class are about the same pools, which
    other libraries may use, too. Without :func:`enable`, ``cupy.cuda.set_allocator(MemoryPool().malloc)`` works as well.
    """

    def malloc(self, size: int) -> Any:
        """Allocates, as :func:`allocate`."""
        return allocate(size)

    def free_all_blocks(self, stream: Any = None) -> None:
        """Gives all free memory back to the device. Waits for the device, as CuPy's does.

        Free memory belongs to no stream: ``stream`` is not looked at.
        """
        pool = _pool(_ordinal())
        pool.synchronize()
        pool.trim()

    def free_all_free(self) -> None:
        """The same, by its older name."""
        self.free_all_blocks()

    def n_free_blocks(self) -> int:
        """1 where the pool holds free memory, which it joins, else 0."""
        return int(self.free_bytes() > 0)

    def used_bytes(self) -> int:
        """Bytes in live blocks, as they are rounded up."""
        return _pool(_ordinal()).stats().allocated.current

    def free_bytes(self) -> int:
        """Bytes that the pool holds but that are in no live block."""
        return _pool(_ordinal()).stats().cached

    def total_bytes(self) -> int:
        """Physical bytes that the pool holds."""
        return _pool(_ordinal()).stats().reserved.current

    def set_limit(self, size: Optional[int] = None, fraction: Optional[float] = None) -> None:
        """Limits what the pool may hold, to ``size`` bytes or to a ``fraction`` of the device's memory. 0 is no limit.

        The option ``hard_limit`` stays as it is. Under a named budget, the limit is the claim of this process.
        """
        if size is not None and fraction is not None:
            raise ValueError("size and fraction: pass one of them")
        ordinal = _ordinal()
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"fraction: {fraction} is not from 0 to 1")
            _, total = _pool(ordinal).memory_info()
            size = int(fraction * total)
        if size is not None and size < 0:
            raise ValueError(f"size: {size} is negative")
        _millpond.set_device_limit(ordinal, size or None)

    def get_limit(self) -> int:
        """The limit in bytes that :meth:`set_limit` or a budget sets; 0 without one."""
        return _millpond.device_limit(_ordinal()) or 0


class PinnedMemoryPool:
    """The pools of pinned memory near the GPUs, with the methods of ``cupy.cuda.PinnedMemoryPool``."""

    def malloc(self, size: int) -> Any:
        """Allocates, as :func:`allocate_pinned`."""
        return allocate_pinned(size)

    def free_all_blocks(self) -> None:
        """Gives all free memory back to the host."""
        pool, _stream = _pinned_pool(_ordinal())
        pool.synchronize()
        pool.trim()

    def n_free_blocks(self) -> int:
        """1 where the pool holds free memory, which it joins, else 0."""
        pool, _stream = _pinned_pool(_ordinal())
        return int(pool.stats().cached > 0)


def enable(*, pinned: bool = False, **options: Unpack[Options]) -> None:
    """Makes millpond CuPy's allocator, on all GPUs. The options are those of :class:`millpond.Pool`.

    With ``pinned``, CuPy's pinned memory is millpond's as well: ``millpond.pool(0, memory="pinned")`` has its figures.

    What CuPy's own pool caches stays with it until ``cupy.get_default_memory_pool().free_all_blocks()``. That pool says
    nothing about millpond's: :class:`MemoryPool` has its methods. With ``MILLPOND_DISABLE=1`` in the environment, this does nothing.
    """
    if _shared.is_disabled("CuPy"):
        return
    import cupy

    if options:
        _millpond.configure(**options)
    cupy.cuda.set_allocator(allocate)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(allocate_pinned)
