"""Numba's external memory manager: ``millpond.numba.enable()`` before the first use of CUDA.

Numba does not say for which stream memory is allocated, nor on which it was last used. So a block is freed after what
was given so far to the legacy default stream, which waits for every stream that ``numba.cuda.stream()`` makes. Streams
of other libraries that do not wait for it (``cudaStreamNonBlocking``) must be synchronised before their arrays go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Unpack

from . import _millpond, _shared
from ._millpond import Pool, Stream

if TYPE_CHECKING:
    from ._options import Options


class Freer:
    """Frees blocks of one pool, on a stream of its own.

    A block that went back to the default stream at once could be given to the next kernel on any stream, while the last
    one on another still runs. On a stream of its own, which waits for the default stream, the pool sees the order.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.stream: Stream = pool.create_stream()

    def finalizer(self, address: int) -> Callable[[], None]:
        """What Numba calls when nothing uses the block any more."""

        def free() -> None:
            self.stream.wait_for_default()
            self.pool.free_address(address, self.stream)

        return free


_freers: dict[int, Freer] = {}


def _freer(ordinal: int) -> Freer:
    freer = _freers.get(ordinal)
    if freer is None:
        freer = _freers[ordinal] = Freer(_shared.pool(ordinal))
    return freer


def manager() -> Any:
    """The manager's class, for ``numba.cuda.set_memory_manager``."""
    from numba import cuda

    class Manager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Device memory from millpond; pinned memory as Numba does it."""

        interface_version = 1

        def initialize(self) -> None:
            """Nothing: the pool is made with the first allocation."""

        def memalloc(self, size: int) -> Any:
            """Allocates for work after what was given to the default stream."""
            import ctypes

            freer = _freer(self.context.device.id)
            address = freer.pool.allocate_address(size)
            pointer, free = ctypes.c_void_p(address), freer.finalizer(address)
            return cuda.MemoryPointer(self.context, pointer, size, finalizer=free)

        def get_memory_info(self) -> Any:
            """Free and total memory, as the driver counts."""
            free, total = _freer(self.context.device.id).pool.memory_info()
            return cuda.MemoryInfo(free=free, total=total)

        def get_ipc_handle(self, memory: Any) -> Any:
            """Refused: mapped memory has no handle of this kind."""
            raise NotImplementedError("memory of millpond cannot be shared between processes by Numba's IPC handles")

    return Manager


def enable(**options: Unpack[Options]) -> None:
    """Makes millpond Numba's allocator, on all GPUs. The options are those of :class:`millpond.Pool`."""
    from numba import cuda

    if options:
        _millpond.configure(**options)
    cuda.set_memory_manager(manager())
