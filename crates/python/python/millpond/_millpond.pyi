"""The part of millpond that is written in Rust."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, Callable, Literal, Optional, Protocol, Union, Unpack, final

from ._options import Options

__version__: str

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

#: A stream: ``None`` is the legacy default stream; an int is a ``CUstream``, which must be alive now and in each later
#: call that uses what was allocated on it; objects of other libraries are kept with the blocks that are allocated on them.
_StreamLike = Union[None, int, "Stream", _CudaStream, _TorchStream, _CupyStream]
_Path = Union[str, "os.PathLike[str]"]
#: A number of bytes, or a text such as ``"8GiB"``.
_Size = Union[int, str]
_Memory = Literal["device", "pinned", "managed"]
_Place = Literal["device", "host"]
_Policy = Literal["follow_event_dependencies", "opportunistic", "internal_dependencies"]

@final
class Level:
    """A figure that moves."""

    def __new__(cls, figures: dict[str, Any]) -> Level: ...
    def as_dict(self) -> dict[str, Any]:
        """The figures by name in a dict of plain numbers, for JSON. The class takes it back."""
    def __reduce__(self) -> tuple[type[Level], tuple[dict[str, Any]]]: ...
    @property
    def current(self) -> int:
        """Now."""
    @property
    def high(self) -> int:
        """At most, since the pool was built or its peaks were reset."""

@final
class DeviceCalls:
    """Device calls by kind, counted since the pool was built."""

    def __new__(cls, figures: dict[str, Any]) -> DeviceCalls: ...
    def as_dict(self) -> dict[str, Any]:
        """The figures by name in a dict of plain numbers, for JSON. The class takes it back."""
    def __reduce__(self) -> tuple[type[DeviceCalls], tuple[dict[str, Any]]]: ...
    @property
    def reserve(self) -> int:
        """Address ranges reserved (``cuMemAddressReserve``)."""
    @property
    def unreserve(self) -> int:
        """Address ranges given back (``cuMemAddressFree``)."""
    @property
    def create(self) -> int:
        """Pages created (``cuMemCreate``)."""
    @property
    def map(self) -> int:
        """Mappings made (``cuMemMap``)."""
    @property
    def set_access(self) -> int:
        """Access rights set (``cuMemSetAccess``)."""
    @property
    def unmap(self) -> int:
        """Mappings removed (``cuMemUnmap``)."""
    @property
    def release(self) -> int:
        """Pages released (``cuMemRelease``)."""
    @property
    def alloc(self) -> int:
        """Plain allocations (``cuMemAlloc``, or ``cuMemAllocAsync`` where an allocator uses that)."""
    @property
    def free(self) -> int:
        """Plain frees (``cuMemFree``, or ``cuMemFreeAsync``)."""
    @property
    def memory(self) -> int:
        """Calls that created, mapped, unmapped, released, allocated or freed device memory."""

@final
class Stats:
    """What a pool did and holds. All sizes are in bytes.

    ``as_dict`` is for JSON; ``Stats`` pickles, and notebooks show it as a table.
    """

    def __new__(cls, figures: dict[str, Any]) -> Stats: ...
    def as_dict(self) -> dict[str, Any]:
        """The figures by name in a dict of plain numbers, for JSON. The class takes it back."""
    def __reduce__(self) -> tuple[type[Stats], tuple[dict[str, Any]]]: ...
    def _repr_html_(self) -> str:
        """The table that notebooks show."""
    @property
    def requested(self) -> Level:
        """Bytes asked for, in live blocks."""
    @property
    def allocated(self) -> Level:
        """Bytes in live blocks, rounded to the pool's minimum alignment, and below 1 MiB to one of eight size
        classes in each doubling."""
    @property
    def reserved(self) -> Level:
        """Physical bytes held from the device."""
    @property
    def blocks(self) -> Level:
        """Live blocks."""
    @property
    def allocations(self) -> int:
        """Allocations since the pool was built."""
    @property
    def frees(self) -> int:
        """Frees since the pool was built."""
    @property
    def hits(self) -> int:
        """Allocations that found memory ready, without a device call that moves memory."""
    @property
    def misses(self) -> int:
        """Allocations that had to map, remap or create."""
    @property
    def stream_waits(self) -> int:
        """Allocations for which the pool made the stream wait for another."""
    @property
    def pages_remapped(self) -> int:
        """Pages taken from a free range to back another address."""
    @property
    def retries(self) -> int:
        """Times that memory ran out and something was given back or waited for, and the request tried again."""
    @property
    def out_of_memory(self) -> int:
        """Requests that ended in an out-of-memory error."""
    @property
    def asleep(self) -> int:
        """Bytes that the pool gave back to sleep, or away when it was evicted, and takes again to wake or to be restored. They are not reserved."""
    @property
    def pinned(self) -> int:
        """Bytes of pinned memory of the host that the pool keeps for evictions."""
    @property
    def double_frees(self) -> int:
        """Blocks that two threads freed at once, so that neither got an error: one of the two frees was
        dropped. A mistake of the program."""
    @property
    def cached(self) -> int:
        """Bytes held but in no live block."""
    @property
    def fragmentation(self) -> float:
        """1 - requested / reserved, now: the share of the memory held that nobody asked for. 0 where nothing is live."""
    @property
    def calls(self) -> DeviceCalls:
        """Device calls by kind."""

@final
class RecordingStatus:
    """What a recording has done."""

    @property
    def path(self) -> os.PathLike[str]:
        """The file. Its name may have the process's number, where another process held the one asked for."""
    @property
    def events(self) -> int:
        """Events recorded, of all pools that record to this file."""
    @property
    def dropped(self) -> int:
        """Events dropped because too much waited for the disk."""
    @property
    def bytes(self) -> int:
        """Bytes written."""
    @property
    def failure(self) -> Optional[str]:
        """Why the last write failed, if it did."""
    def _repr_html_(self) -> str:
        """The same as a table for Jupyter."""

@final
class Stream:
    """A stream that millpond made (``Pool.create_stream``), or another library's that is registered (``Pool.register_stream``)."""

    @property
    def handle(self) -> int:
        """The driver's handle (``CUstream``), valid as long as this object."""
    @property
    def idle(self) -> bool:
        """Whether all work given to the stream so far is complete."""
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def synchronize(self) -> None:
        """Waits until all work given to the stream so far is complete, then applies the release thresholds."""
    def wait_for(self, other: Stream) -> None:
        """Makes later work on this stream wait for all work given to ``other`` so far. The host does not wait."""
    def wait_for_default(self) -> None:
        """Makes later work on this stream wait for all work given to the legacy default stream so far."""
    def unregister(self) -> None:
        """Ends the registration of another library's stream: that may be destroyed then. Does not wait for the stream's work.

        What was made with this object afterwards frees late but safely; all else with it is an error.
        """

@final
class Residency:
    """What was said of a block of managed memory, where it is the same of all its pages."""

    @property
    def last_prefetch(self) -> Optional[_Place]:
        """Where it was last prefetched to: ``"device"`` or ``"host"``. It may lie elsewhere by now."""
    @property
    def preferred_location(self) -> Optional[_Place]:
        """Where it is to stay: ``"device"`` or ``"host"``."""
    @property
    def read_mostly(self) -> bool:
        """Whether it is mostly read."""

class _HasFileno(Protocol):
    def fileno(self) -> int: ...

@final
class Shared:
    """A block that several processes use: made by ``Block.share``, and by ``Pool.open_shared`` in the other process.

    It orders the work of all processes on the block. The block's memory is given to nobody else as long as this lives, or
    another process has it open.
    """

    def send(self, socket: _HasFileno) -> None:
        """Sends the block to another process, which calls ``Pool.open_shared``. Once for each process.

        Args:
            socket: a connected Unix socket that blocks, or what else has its ``fileno``, as the ends of
                ``multiprocessing.Pipe()`` do.

        Raises:
            Error: where it cannot be sent.
        """
    def record(self, stream: _StreamLike = None) -> None:
        """Notes the work given so far to ``stream``, for others to wait for. Tell them then, over the socket for example.

        Raises:
            Error: where the process that shared the block is gone.
        """
    def wait(self, stream: _StreamLike = None) -> None:
        """Makes later work on ``stream`` wait for the work that was noted last, in whichever process. The host does not wait.

        Raises:
            Error: where the process that shared the block is gone.
        """
    @property
    def exposed(self) -> int:
        """Bytes of the pages that the block lies on, which other processes can reach. 0 where the block is another process's."""
    def close(self) -> None:
        """Ends this process's part. The block is freed apart from it."""
    def __enter__(self) -> Shared: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Block:
    """A block of a pool's memory. It is freed in stream order when it is dropped, or at the end of a ``with``.

    In pinned and managed memory, and on the CPU as a device, ``memoryview(block)``, ``numpy.asarray(block)`` and
    ``numpy.from_dlpack(block)`` are its bytes. They wait for the work given so far to its stream and for recorded uses, as
    ``synchronize`` does. While one of these is alive, the block cannot be freed, and its pool neither sleeps nor is evicted.

    Libraries of a GPU take a block in place: ``cupy.asarray(block)``, ``numba.cuda.as_cuda_array(block)`` and
    ``torch.from_dlpack(block)``. Their work comes after the work given so far to the block's stream.
    """

    @property
    def ptr(self) -> int:
        """The address; 0 for a block of no bytes."""
    @property
    def size(self) -> int:
        """Bytes asked for."""
    @property
    def freed(self) -> bool:
        """Whether the block was freed."""
    def free(self, stream: _StreamLike = None) -> None:
        """Frees the block after the work given so far to ``stream``, by default the stream of the allocation.

        Another stream must be ordered after that one and after all work on the block.
        """
    def record_use(self, stream: _StreamLike) -> None:
        """Notes that work given so far to ``stream`` uses the block: the free will wait for it.

        On a ``millpond.Stream``: also what is given to it until the block is freed. A stream of another GPU has to be one, and
        counts as far as it came.
        """
    def synchronize(self) -> None:
        """Waits until the CPU may use the bytes: for the work given so far to the block's stream, and for recorded uses.

        Call it before a view that was made earlier is used again.
        """
    def copy_from(self, other: Block) -> None:
        """Copies the bytes of a block of the same size, of any pool of the device or of another GPU, on this block's stream.

        The host does not wait where both are memory of the device or pinned. This stream first waits for the other block's.
        The free of the other block waits for the copy, and so do later copies to it.

        Raises:
            ValueError: where the sizes differ.
            MisuseError: for a block that was freed, or one of another device.
        """
    def prefetch(self, to: _Place, stream: _StreamLike = None) -> None:
        """Moves managed memory ``to`` the ``"device"`` or the ``"host"``, in the order of ``stream``, by default the block's.

        On a GPU, the call takes most of the time of the move. No byte changes. Later work finds the memory in place, and has no page faults.

        Raises:
            MisuseError: for other memory, which stays where it is.
        """
    def advise(
        self,
        *,
        read_mostly: Optional[bool] = None,
        preferred_location: Optional[Literal["device", "host", "anywhere"]] = None,
        accessed_by: Optional[_Place] = None,
        not_accessed_by: Optional[_Place] = None,
    ) -> None:
        """Says how managed memory will be used, until the block is freed. No byte changes.

        Args:
            read_mostly: the device and the host each have a copy, until one of them writes.
            preferred_location: where it is to stay: ``"device"``, ``"host"`` or ``"anywhere"``.
            accessed_by: ``"device"`` or ``"host"``: it stays mapped there, so that its first use is no page fault.
            not_accessed_by: takes ``accessed_by`` back.

        Raises:
            MisuseError: for other memory.
        """
    def residency(self) -> Residency:
        """Where managed memory was last prefetched to, and the advice on it.

        Raises:
            MisuseError: for other memory.
        """
    def share(self, stream: _StreamLike = None) -> Shared:
        """Lets other processes open the block's memory, after the work given so far to ``stream``, by default the block's.

        They reach the whole pages that the block lies on (``Shared.exposed``). In a pool with ``page_sizes=("2MiB", "2MiB")``
        and ``min_alignment="2MiB"``, each block has pages of its own.

        Raises:
            MisuseError: for memory that cannot be shared: pinned, managed, of no bytes.
            DeviceError: where the device cannot share memory.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """What NumPy asks where it finds no bytes: raises why."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The bytes for libraries of a GPU, by the CUDA array interface. Not on devices that are no GPU.

        What takes it keeps the block, but does not count as a view: free the block after it. While the block's stream is being
        captured, it names no stream, since nobody may wait for that one: use the block in the same capture.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """Where the memory is, in DLPack's numbers. That of pinned and managed memory is the CPU's."""
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """The bytes as a DLPack tensor, for ``from_dlpack`` of NumPy, CuPy, PyTorch and others.

        Args:
            stream: on a GPU, the consumer's: its later work comes after the work given so far to the block's stream, and the
                free waits for it as ``record_use`` says. For the CPU, the work is complete when this returns.
            max_version: the newest version of DLPack that the consumer takes.
            dl_device: where the consumer uses the bytes. Pinned and managed memory is the GPU's as well as the CPU's.
            copy: with ``True``, the tensor is a new block of the pool.

        Raises:
            BufferError: where ``dl_device`` does not reach the memory.
        """
    def __int__(self) -> int: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Block: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Callback:
    """A function that a pool calls: made by ``Pool.on_reclaim`` and ``Pool.on_out_of_memory``.

    The pool calls it until it is removed. ``with pool.on_reclaim(function):`` removes it at the end.
    """

    def remove(self) -> bool:
        """Lets the pool call it no more. Returns whether it was not removed before.

        It does not wait for calls that other threads are in.
        """
    def __enter__(self) -> Callback: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class OutOfMemory:
    """Where the memory is when it ran out. Sizes in bytes; ``str()`` is the text of the error."""

    @property
    def pool(self) -> str:
        """The pool's name."""
    @property
    def memory(self) -> _Memory:
        """What memory the pool is of: ``"device"``, ``"pinned"`` or ``"managed"``. *The device*, below, is what has that memory."""
    @property
    def requested(self) -> int:
        """Bytes asked for."""
    @property
    def limit(self) -> Literal["device", "hard_limit", "budget", "headroom"]:
        """What stood in the way: ``"device"``, ``"hard_limit"``, ``"budget"`` or ``"headroom"``."""
    @property
    def limit_bytes(self) -> Optional[int]:
        """Bytes of that limit; ``None`` for the device."""
    @property
    def live(self) -> int:
        """Bytes in live blocks of the pool."""
    @property
    def blocks(self) -> int:
        """Live blocks of the pool."""
    @property
    def cached(self) -> int:
        """Bytes that the pool holds but that are in no live block."""
    @property
    def reserved(self) -> int:
        """Physical bytes that the pool holds."""
    @property
    def other_pools(self) -> int:
        """Bytes that other pools of the device hold."""
    @property
    def device_free(self) -> int:
        """Bytes free on the device, as its driver counts."""
    @property
    def device_total(self) -> int:
        """Bytes that the device has."""
    @property
    def largest_free(self) -> int:
        """Bytes of the longest free range."""
    @property
    def tenants(self) -> list[Tenant]:
        """The other processes under the pool's named budget."""
    @property
    def advice(self) -> str:
        """What would have let the request succeed."""
    @property
    def message(self) -> str:
        """The text of the error."""

@final
class CapturePool:
    """Memory for what is captured into CUDA graphs: made by ``Pool.capture_pool``.

    It stays at its addresses, and nothing else uses it, until this object is dropped. So keep it as long as the graph. Several
    captures may share it, one after the other. Then replay their graphs in that order, and never at the same time.

    Drop it only when no graph that uses the memory is launched again: the host then waits for the device, and what is free goes
    back. Blocks that are live stay valid until they are freed. docs/graphs.md says more.
    """

    def begin(self, stream: _StreamLike = None) -> Capturing:
        """Lets the pool's allocations for ``stream``, and for others of the same capture, come from this memory.

        Call it before the capture begins, and end it after the capture has ended: ``with memory.begin(stream):`` around the
        capture does both.

        Raises:
            Error: where another one has not ended.
        """
    @property
    def reserved(self) -> int:
        """Physical bytes that the memory holds."""
    @property
    def used(self) -> int:
        """Bytes in live blocks of the memory."""

@final
class Capturing:
    """As long as it has not ended, allocations come from the memory of a capture: made by ``CapturePool.begin``."""

    def end(self) -> None:
        """Lets allocations come from the pool's own memory again. A second call does nothing."""
    def __enter__(self) -> Capturing: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Tenant:
    """A process under a named budget. Sizes in bytes."""
    @property
    def pid(self) -> int:
        """The process."""
    @property
    def program(self) -> str:
        """The name of its program."""
    @property
    def held(self) -> int:
        """What its pools with the budget hold."""
    @property
    def floor(self) -> int:
        """What is kept for it."""
    @property
    def claim(self) -> Optional[int]:
        """The most that it takes; ``None`` without a claim."""

@final
class Budget:
    """A limit on the physical bytes that all pools with this budget hold together, also those of other processes.

    Give it to pools as their option ``budget``. Sizes are numbers of bytes, or texts such as ``"8GiB"``.

    With a name, all processes of this user share it which give the same name. A process that lacks memory asks the others,
    and their free memory goes back. A process that ends in any way gives up what it held. docs/budgets.md says more.

    Args:
        limit: the limit. That of a named budget is set by the first process; for those that join later, it is what it is.
        name: 1 to 64 letters, digits, ``-`` and ``_``. Without one, the budget is this process's.
        floor: what is kept for this process. Other processes do not take it, and it need not give it back.
        claim: the most that this process takes.
        patience: how many seconds a request waits until other processes free memory. 0.05 by default. With 0, it takes what
            is free there already.

    Raises:
        ValueError: for a value that makes no sense, or a floor, a claim or a patience without a name.
        Error: where the file that the processes share cannot be used.
    """
    def __new__(
        cls,
        limit: _Size,
        *,
        name: Optional[str] = None,
        floor: Optional[_Size] = None,
        claim: Optional[_Size] = None,
        patience: Optional[float] = None,
    ) -> Budget: ...
    @staticmethod
    def find(name: str) -> Optional[Budget]:
        """The named budget, with the limit that it has; ``None`` where no process has it."""
    @property
    def limit(self) -> int:
        """The limit in bytes."""
    @property
    def most(self) -> int:
        """The most that the pools of this process may hold: the limit, or its claim if that is lower."""
    @property
    def held(self) -> int:
        """Bytes that the pools hold now, those of all processes."""
    def set(
        self,
        *,
        limit: Optional[_Size] = None,
        floor: Optional[_Size] = None,
        claim: Optional[_Size] = None,
        patience: Optional[float] = None,
    ) -> None:
        """Changes the limit, that of a named budget for all processes; or what the constructor says of this process.

        What the pools hold beyond a lower limit stays theirs until they give it back. Those of a named budget do so at once
        with what is free.
        """
    def tenants(self) -> list[Tenant]:
        """The processes that have a named budget, this one too; none without a name."""

@final
class Pool:
    """A memory pool of one device.

    Memory is valid for work ordered after the allocation and before the free, as if both were kernels on their streams.
    Sizes are numbers of bytes, or texts such as ``"8GiB"``.

    Args:
        device: a GPU's number, or a device's name as the command has it: ``"cuda:N"``, ``"host"`` (the CPU, with real
            memory), ``"sim"`` (no memory at all).
        memory: ``"device"``: the device's own, the default. ``"pinned"``: page-locked memory of the host, which the device
            copies to and from without the host's waiting. ``"managed"``: memory that moves to where it is used. The CPU uses
            the last two in place.
        node: the NUMA node of pinned memory. By default one near the device.
        capacity: how much memory a device that is no GPU has.
        name: a name for errors and reports.
        hard_limit: physical memory that the pool may hold. No limit by default.
        release_threshold: physical memory kept when a stream or the device is synchronised through millpond. All of it
            by default.
        headroom: memory of the device that the pool always leaves free for others. 0 by default.
        reuse: how memory may pass from stream to stream: ``True`` (all policies, the default), ``False``, or names.
        page_sizes: the smallest and the largest physical page, powers of two. By default the device's granularity (2 MiB)
            and 32 MiB.
        min_alignment: what every address is a multiple of: a power of two from 256 bytes to 2 MiB. 512 by default.
        growth_allowance: how much more than the most that was ever live the pool may hold to save time. It does so only while moving
            memory would take a third of the program's time. 1/32 of the device's memory by default, and a quarter of what was
            ever live at most; with 0 it never does.
        budget: a ``Budget`` that the pool shares with others, also of other processes.
        accessible_from: ``"all"``, or the numbers of the GPUs that may use all memory of the pool. None by default:
            see ``allow_access``.
        record: a file to record to, from the start.
        guard: what of the program's mistakes with memory the pool finds: ``"all"``, or words of docs/guard.md. By default what
            ``MILLPOND_GUARD`` says.

    Raises:
        TypeError: for a name that is no option, or a value of the wrong type.
        ValueError: for a value that makes no sense.
        DeviceError: where there is no such device.
    """

    def __new__(
        cls,
        device: Union[int, str],
        *,
        memory: Optional[_Memory] = None,
        node: Optional[int] = None,
        capacity: Optional[_Size] = None,
        name: Optional[str] = None,
        hard_limit: Optional[_Size] = None,
        release_threshold: Optional[_Size] = None,
        headroom: Optional[_Size] = None,
        reuse: Union[bool, Collection[_Policy], None] = None,
        page_sizes: Optional[tuple[_Size, _Size]] = None,
        min_alignment: Optional[_Size] = None,
        growth_allowance: Optional[_Size] = None,
        budget: Optional[Budget] = None,
        accessible_from: Union[Literal["all"], Sequence[int], None] = None,
        record: Optional[_Path] = None,
        guard: Optional[str] = None,
    ) -> Pool: ...
    @property
    def name(self) -> str:
        """The pool's name."""
    @property
    def device(self) -> str:
        """The device, as the constructor takes it."""
    @property
    def memory(self) -> _Memory:
        """What memory the pool is of, as the constructor takes it."""
    def reserve(self, size: _Size, stream: _StreamLike = None) -> None:
        """Takes memory in advance, so that blocks of ``size`` bytes in all can be allocated on ``stream`` without a device call.

        What is free in the pool counts. Several threads prepare pinned memory.

        Raises:
            OutOfMemoryError: after everything that could make room was tried.
        """
    def allocate(self, size: _Size, stream: _StreamLike = None, *, align: Optional[_Size] = None) -> Block:
        """Allocates ``size`` bytes for work on ``stream``. The address is a multiple of ``align``.

        Raises:
            OutOfMemoryError: after everything that could make room was tried.
        """
    def allocate_address(self, size: _Size, stream: _StreamLike = None) -> int:
        """Allocates for a caller that keeps the address itself, and gives it to ``free_address``."""
    def free_address(self, address: int, stream: _StreamLike = None) -> None:
        """Frees what ``allocate_address`` gave, after the work given so far to ``stream``.

        Raises:
            MisuseError: for an address that was freed already or that this pool did not give; nothing changed then.
        """
    def open_shared(self, socket: _HasFileno, stream: _StreamLike = None) -> tuple[Block, Shared]:
        """Waits for a block that another process sends (``Shared.send``), and opens it for work on ``stream``.

        That work comes after what the other process gave its stream before it shared the block. The block is freed as others
        are. It takes no memory of the pool. The other process may use the memory for something else once both are gone.

        Args:
            socket: the other end of the socket that the block is sent over.

        Raises:
            Error: for what is no block that this device reaches, or where the other process is gone.
        """
    def create_stream(self) -> Stream:
        """Makes a stream of the pool's device."""
    def register_stream(self, stream: _StreamLike) -> Stream:
        """Registers another library's stream of the pool's device, for the fast path: frees on it then record no event.

        Calls that are given the stream itself are fast, too. It stays registered until ``Stream.unregister`` is called, or what is
        returned and all blocks made with that are gone. The other library's object is kept so long. A stream that is
        passed as a number must not be destroyed before: memory that was used on it could be given to others too early.

        Raises:
            DeviceError: while the stream is being captured.
        """
    def synchronize(self) -> None:
        """Waits for all work on the device, then applies the release thresholds."""
    def allow_access(self, peer: Union[Pool, int]) -> None:
        """Lets the device of another pool, or a GPU by its number, use all memory of this pool at its addresses.

        That is what there is, and what comes. It costs about 40 µs for each page, and 1 ms for the first one (H100).

        Raises:
            DeviceError: for a device that cannot work together with the pool's, or does not reach its memory.
        """
    def take_back_access(self, peer: Union[Pool, int]) -> None:
        """Takes the access of another device back, from all memory of this pool. Waits for all work of that device.

        Memory in segments stays within its reach.

        Raises:
            ValueError: for a pool that was made with ``accessible_from="all"``.
        """
    def allow_access_to(self, block: Block, peer: Union[Pool, int]) -> None:
        """Lets another device use one block of this pool. Its pages keep the access for later blocks.

        Raises:
            DeviceError: as ``allow_access``.
            MisuseError: for a block of another pool, or one that was freed.
        """
    def is_accessible_from(self, block: Block, peer: Union[Pool, int]) -> bool:
        """Whether another device may use a block of this pool.

        Raises:
            MisuseError: for a block of another pool, or one that was freed.
        """
    def stats(self) -> Stats:
        """What the pool did and holds. Takes no lock."""
    def reset_peak(self) -> None:
        """Lets the high-water marks start again from where the figures are now."""
    def trim(self, keep: _Size = 0) -> int:
        """Gives free memory back to the device until at most ``keep`` bytes are reserved. Returns the bytes given back."""
    def sleep(self, keep: Literal["pinned", "nothing"] = "pinned") -> int:
        """Gives all of the pool's memory back to the device, with that of its tags. Returns the bytes given back.

        Blocks stay, and ``wake`` brings them back to where they were. With ``keep="pinned"`` their bytes are copied to pinned
        memory of the host, with ``keep="nothing"`` they are dropped. It waits for the device. The memory must not be used
        until the pool is awake; blocks may be freed. docs/sleep.md says more.

        Raises:
            ValueError: for another ``keep``.
            MisuseError: for a pool of pinned or managed memory, while the CPU looks at a block, and while a graph is captured.
            DeviceError: where the host has too little pinned memory, among others.
        """
    def wake(self) -> None:
        """Ends a sleep, with that of the pool's tags. Returns once all bytes are in place.

        Raises:
            OutOfMemoryError: where memory is lacking. The pool sleeps as before: make room, and try again.
        """
    @property
    def is_asleep(self) -> bool:
        """Whether the pool sleeps."""
    def evict(self, stream: _StreamLike = None) -> int:
        """Has the memory of a tag serve its pool for a while. Returns the bytes that the pool got.

        Behind all work that streams were given so far, the bytes of blocks are copied to pinned memory of the host. From the end of
        the copies on, the pages serve other addresses of the pool. The host does not wait. The memory must not be used until
        ``restore``; blocks may be freed. docs/beyond.md says more.

        Raises:
            MisuseError: for a pool that is no tag's, that sleeps or has a guard, and while the CPU looks at a block.
            DeviceError: where the host has too little pinned memory, or ``stream`` is being captured, among others.
        """
    def restore(self, stream: _StreamLike = None) -> None:
        """Ends an eviction: blocks are where they were. Later work on ``stream`` comes behind the copies of their bytes.

        Other streams wait for the copies where a block shows or copies its bytes. Have them wait for ``stream`` before kernels use them.

        Raises:
            OutOfMemoryError: where memory is lacking. The tag is evicted as before: make room, and try again.
        """
    def restore_ahead(self) -> None:
        """Begins a restore, which then only has its stream wait. The copies run beside other work until then.

        Raises:
            OutOfMemoryError: as ``restore``.
        """
    def restore_free(self) -> int:
        """As ``restore_ahead``, for as much of the tag as the pool has free memory. It can be called again as more becomes free.

        Returns:
            Bytes that are still away: the rest comes with ``restore``.
        """
    @property
    def is_evicted(self) -> bool:
        """Whether the pool is evicted."""
    def tagged(self, tag: str) -> Pool:
        """The part of the pool for a tag, to be put to sleep or evicted on its own: a pool with the same options, under the same
        hard limit.
        """
    @property
    def tags(self) -> list[str]:
        """The tags that were named so far."""
    def trim_staging(self) -> int:
        """Gives the pinned memory back that sleeps and evictions left for the next one. Returns the bytes given back."""
    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the memory that the pool is of, as its driver counts."""
    def on_reclaim(self, function: Callable[[int], object]) -> Callback:
        """Registers a function that is asked when memory is short, after everything that the pool can do itself.

        It gets the bytes that are wanted. It may free, trim and allocate, and returns whether to try again. It is called on
        the thread that allocates. For what it allocates from this pool itself, no function is asked. An exception in it is
        printed (``sys.unraisablehook``), and counts as ``False``.

        The pool keeps the function until it is removed, and so what the function refers to. One that refers to the pool, or to
        blocks of it, keeps the pool: remove it, or let it refer to them by ``weakref``.
        """
    def on_out_of_memory(self, function: Callable[[OutOfMemory], object]) -> Callback:
        """Registers a function that is told of each request for which there was no memory, before its caller gets the error.

        It gets an ``OutOfMemory``. It is called on the thread that allocates. Use it to log, or to write a snapshot. An exception
        in it is printed (``sys.unraisablehook``). The pool keeps it as ``on_reclaim`` says.
        """
    def capture_pool(self) -> CapturePool:
        """Memory for what is captured into CUDA graphs. It holds nothing yet."""
    def start_recording(self, path: _Path, *, call_sites: bool = False) -> None:
        """Starts recording to a file, for ``millpond replay``. A recording that runs is stopped.

        With ``call_sites`` each allocation keeps the lines of Python that it comes from.
        """
    def stop_recording(self) -> Optional[RecordingStatus]:
        """Stops recording, and returns what was recorded once it is written."""
    @property
    def recording(self) -> Optional[RecordingStatus]:
        """The recording that runs."""
    def write_snapshot(self, path: _Path) -> bool:
        """Writes a snapshot for memory_viz. Returns ``False``, and writes no file, where there is nothing to show."""
    def destroy(self) -> None:
        """Destroys the pool: it allocates no more. Waits for pending work on its memory."""
    def guard_findings(self) -> list[str]:
        """What the guard found, as texts: see the option ``guard``."""
    def check(self) -> None:
        """Recounts every invariant of the pool, for tests."""
    def _repr_html_(self) -> str:
        """What it holds and did, as a table for Jupyter."""

@final
class tag:
    """``with millpond.tag("forward"):`` files what this thread does with pools under a name, in recordings.

    It ends on the thread that began it, with all that this thread began since.
    """

    def __new__(cls, text: str) -> tag: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

def gpu_ordinal(name: str) -> Optional[int]:
    """The number of the GPU that a text names; ``None`` where it names none."""

def configure(**options: Unpack[Options]) -> None:
    """Sets the options of the GPUs' shared pools, by the names of ``Pool``'s. Before the first of them is made."""

def device_pool(ordinal: int, memory: Optional[Literal["device", "pinned"]] = None) -> Pool:
    """The shared pool of a GPU's own memory, or of pinned memory near it."""

def live_pools() -> list[Pool]:
    """The pools that live in this process, in the order in which they were made."""

def devices_in_use() -> list[int]:
    """The GPUs that have a shared pool now."""

def offer(block: Block, stream: _StreamLike) -> str:
    """Offers a block to other processes of this user, which open it by the text that is returned (``open_offer``). Their work on it
    comes after what ``stream`` is given until then. Whoever frees the block ends the offer before (``withdraw``)."""

def withdraw(block: Block) -> None:
    """Ends the offer of a block. Who opened it has it still."""

def open_offer(pool: Pool, handle: str) -> tuple[Block, Shared]:
    """Opens the block that another process offers (``offer``), for work on the default stream."""

def keep_stream(ordinal: int, stream: object) -> None:
    """Registers a stream that stays as long as the process, for the shared pool of a GPU: calls with its handle are then fast."""

def last_error() -> Optional[str]:
    """The message of the last request of PyTorch's that failed."""

def replay_as_json(arguments: Sequence[Union[str, "os.PathLike[str]"]]) -> tuple[str, list[str]]:
    """Replays with the command's arguments, of which the first is the trace, prints nothing, and returns the results as JSON
    with the remarks."""

def rmm_table() -> int:
    """The address of the table of functions that RMM's resource stands on."""

def run_command(arguments: Sequence[str]) -> int:
    """Runs the ``millpond`` command with these arguments, of which the first is the program's name; its exit status."""

def device_limit(ordinal: int) -> Optional[int]:
    """The most that the shared pool of a GPU may hold, in bytes; ``None`` without a limit."""

def set_device_limit(ordinal: int, bytes: Optional[int]) -> None:
    """Limits what the shared pool of a GPU may hold; ``None`` takes the limit back. Under a budget that processes share, it is
    the claim of this one."""

def stand_in(ordinal: int, pool: Pool, budget: Optional[Budget] = None) -> None:
    """Lets a pool of another device stand for a GPU's, for tests without one. It has the budget that it was made with, if any."""

def pool_for_host_functions() -> Pool:
    """A pool of the CPU as a device, for tests: its streams take ``launch_host_function``."""

def launch_host_function(stream: Stream, function: int, argument: int) -> None:
    """Lets a stream of such a pool call a C function, by its address, with one argument, in stream order. For tests."""

def set_tag(tag: Optional[str]) -> Optional[str]:
    """Lets PyTorch's allocations on this thread belong to a tag of the GPUs' pools. Returns the one before."""

def torch_open_captures() -> list[tuple[int, int, int]]:
    """The pools that this thread began, and that have not ended: the GPU's number, and PyTorch's name of the pool."""

def torch_abandon_capture(number: int, first: int, second: int) -> None:
    """A capture failed, and no graph came of it: PyTorch neither ends nor releases its pool then. Does nothing where it has ended."""

def torch_hooks() -> tuple[bool, list[tuple[str, int]]]:
    """Whether PyTorch's exceptions were found, and the addresses of the functions that PyTorch calls."""

def torch_shim_table() -> int:
    """The address of the table of functions that the C++ shim stands on."""

def torch_set_fraction(fraction: float) -> None:
    """Limits what the pools of all GPUs may hold to a share of the GPU's memory, those that are made later too."""

def torch_set_kept(part: float) -> None:
    """Has ``torch_synchronized`` give back what a pool holds above this part of its limit, between 0 and 1."""

def torch_synchronized(gpu: int) -> None:
    """PyTorch has waited for a GPU: the release thresholds take effect."""
