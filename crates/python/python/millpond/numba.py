"""Numba's external memory manager: ``millpond.numba.enable()`` before the first use of CUDA, or
``NUMBA_CUDA_MEMORY_MANAGER=millpond.numba`` in the environment, which is Numba's own way.

Numba does not say for which stream memory is allocated, nor on which it was last used. So a block is freed after what
was given so far to the legacy default stream, which waits for every stream that ``numba.cuda.stream()`` makes. Streams
of other libraries that do not wait for it (``cudaStreamNonBlocking``) must be synchronised before their arrays go.

``array.get_ipc_handle()`` works between processes that both use millpond. The handle can be pickled, and sent by any way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Optional, Unpack

from . import _millpond, _shared
from ._millpond import Block, Pool, Shared, Stream

if TYPE_CHECKING:
    from ._options import Options


class _Blocks:
    """The blocks of one GPU that Numba has. They are freed on a stream of its own.

    A block that went back to the default stream at once could be given to the next kernel on any stream, while the last
    one on another still runs. On a stream of its own, which waits for the default stream, the pool sees the order.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.stream: Stream = pool.create_stream()
        self._live: dict[int, Block] = {}

    def allocate(self, size: int) -> tuple[int, Callable[[], None]]:
        """An address, and what Numba calls when nothing uses the memory any more."""
        block = self.pool.allocate(size)
        address = block.ptr
        self._live[address] = block

        def free() -> None:
            self._live.pop(address, None)
            _millpond.withdraw(block)
            self.free(block)

        return address, free

    def free(self, block: Block) -> None:
        """Frees a block after what was given so far to the default stream."""
        self.stream.wait_for_default()
        block.free(self.stream)

    def offer(self, address: int) -> tuple[str, int]:
        """Offers the block that an address lies in to other processes; also where in it. Their work comes after what was given
        so far to the default stream."""
        for start, block in list(self._live.items()):
            if start <= address < start + block.size:
                self.stream.wait_for_default()
                return _millpond.offer(block, self.stream), address - start
        raise ValueError(f"{address:#x} is no memory of millpond: only arrays that Numba allocated have IPC handles")


_blocks: dict[int, _Blocks] = {}


def _blocks_of(ordinal: int) -> _Blocks:
    blocks = _blocks.get(ordinal)
    if blocks is None:
        blocks = _blocks[ordinal] = _Blocks(_shared.pool(ordinal))
    return blocks


class IpcHandle:
    """What ``get_ipc_handle`` returns: Numba's ``IpcHandle`` for memory of millpond.

    It can be pickled and sent to another process, which opens it in place, by ``numba.cuda``'s ways or by these. The array
    must live until then. As with Numba's own handles, say to each other by other means when the array is written and read.
    """

    def __init__(self, offer: str, size: int, offset: int, base: Any = None) -> None:
        #: The memory, in the process that has it.
        self.base = base
        self.size, self.offset = size, offset
        self._offer = offer
        self._opened: Optional[tuple[Shared, Callable[[], None]]] = None

    def open(self, context: Any) -> Any:
        """Opens the memory in another process, for its work on the default stream. Returns a ``MemoryPointer``."""
        import ctypes

        from numba import cuda

        if self.base is not None:
            raise ValueError("an IPC handle is for another process: this one has the array")
        if self._opened is not None:
            raise ValueError("IpcHandle is already opened")
        blocks = _blocks_of(context.device.id)
        block, shared = _millpond.open_offer(blocks.pool, self._offer)
        here = os.getpid()

        def free() -> None:
            if os.getpid() == here and not block.freed:
                blocks.free(block)

        self._opened = shared, free
        pointer = ctypes.c_void_p(block.ptr + self.offset)
        return cuda.MemoryPointer(context, pointer, self.size, finalizer=free)

    def open_array(self, context: Any, shape: Any, dtype: Any, strides: Any = None) -> Any:
        """Opens the memory in another process, as an array."""
        from numba.cuda.cudadrv import devicearray

        strides = dtype.itemsize if strides is None else strides
        memory = self.open(context)
        return devicearray.DeviceNDArray(shape=shape, strides=strides, dtype=dtype, gpu_data=memory)

    def close(self) -> None:
        """Ends the use of the memory, after the work given so far to the default stream."""
        if self._opened is None:
            raise ValueError("IpcHandle not opened")
        shared, free = self._opened
        self._opened = None
        free()
        shared.close()

    def __reduce__(self) -> tuple[type[IpcHandle], tuple[str, int, int]]:
        return IpcHandle, (self._offer, self.size, self.offset)


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

            address, free = _blocks_of(self.context.device.id).allocate(size)
            return cuda.MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=free)

        def get_memory_info(self) -> Any:
            """Free and total memory, as the driver counts."""
            free, total = _blocks_of(self.context.device.id).pool.memory_info()
            return cuda.MemoryInfo(free=free, total=total)

        def get_ipc_handle(self, memory: Any) -> IpcHandle:
            """A handle by which another process that uses millpond opens the memory."""
            offer, offset = _blocks_of(self.context.device.id).offer(memory.device_ctypes_pointer.value)
            return IpcHandle(offer, memory.size, offset, base=memory)

    return Manager


def enable(**options: Unpack[Options]) -> None:
    """Makes millpond Numba's allocator, on all GPUs. The options are those of :class:`millpond.Pool`.

    With ``MILLPOND_DISABLE=1`` in the environment, this does nothing.
    """
    if _shared.is_disabled("Numba"):
        return
    from numba import cuda

    if options:
        _millpond.configure(**options)
    cuda.set_memory_manager(manager())


def __getattr__(name: str) -> Any:
    # What Numba takes from the module that NUMBA_CUDA_MEMORY_MANAGER names. The class is made when Numba is there.
    if name == "_numba_memory_manager":
        return manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
