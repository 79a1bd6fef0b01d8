"""What autograd keeps for the backward, in pinned memory until then: :func:`millpond.torch.offload_activations`.

A tensor that is kept is copied on a stream of its own, behind the work so far, with all memory that it is a view of. The GPU's memory
is free once nobody else holds it, behind that copy. When the backward takes a tensor, those that it will take next begin to come back on
another stream.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import _millpond

#: So many of what was kept before come back early.
_AHEAD = 3

#: Memory of which less than one in so many bytes is kept stays on the GPU.
_MOST_UNUSED = 4


class Streams:
    """A GPU's two streams for copies, and its pinned memory."""

    def __init__(self, torch: Any, ordinal: int) -> None:
        self.out, self.back = torch.cuda.Stream(ordinal), torch.cuda.Stream(ordinal)
        self.pinned = _millpond.device_pool(ordinal, "pinned")


_streams: dict[int, Streams] = {}

#: Memory that was still held when it came back, as that of a parameter is: to copy it frees nothing.
_held: dict[int, Any] = {}
atexit.register(_held.clear)


class Kept:
    """The bytes of one storage, in pinned memory."""

    def __init__(self, torch: Any, storage: Any, before: Kept | None) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch, self.device, self.storage = torch, storage.device, StorageWeakRef(storage)
        if storage.device.index not in _streams:
            _streams[storage.device.index] = Streams(torch, storage.device.index)
        self.streams = _streams[storage.device.index]
        self.before = None if before is None else weakref.ref(before)
        #: How often it is still to be taken, and the bytes on the GPU meanwhile.
        self.uses = 0
        self.there: Any = None
        self.came: Any = None
        out, size = self.streams.out, storage.nbytes()
        self.block = self.streams.pinned.allocate(size, out.cuda_stream)
        # A view of the block itself would wait for the copies.
        self.bytes = torch.frombuffer((ctypes.c_char * size).from_address(self.block.ptr), dtype=torch.uint8)
        source = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(out):
            self.bytes.copy_(source, non_blocking=True)
        source.record_stream(out)

    def begin(self) -> None:
        """Begins to bring the bytes back."""
        if self.there is not None or self.uses == 0:
            return
        torch, back = self.torch, self.streams.back
        self.there = torch.empty(self.bytes.numel(), dtype=torch.uint8, device=self.device)
        back.wait_stream(torch.cuda.current_stream(self.device))
        back.wait_stream(self.streams.out)
        with torch.cuda.stream(back):
            self.there.copy_(self.bytes, non_blocking=True)
        self.there.record_stream(back)
        self.block.record_use(back.cuda_stream)
        self.came = back.record_event()

    def take(self) -> Any:
        """The bytes on the GPU, for work on the current stream."""
        self.uses = max(self.uses, 1)
        self.begin()
        taken, stream = self.there, self.torch.cuda.current_stream(self.device)
        stream.wait_event(self.came)
        taken.record_stream(stream)
        self.uses -= 1
        if self.uses == 0:
            self.there = None
            if not self.storage.expired():
                _held[self.storage.cdata] = self.storage
        one = self
        for _ in range(_AHEAD):
            before = one.before() if one.before is not None else None
            if before is None:
                break
            before.begin()
            one = before
        return taken


class View:
    """A tensor that is kept, as a view of memory that is."""

    def __init__(self, kept: Kept, tensor: Any) -> None:
        self.kept, self.dtype = kept, tensor.dtype
        self.place = tensor.size(), tensor.stride(), tensor.storage_offset()
        kept.uses += 1

    def tensor(self) -> Any:
        return self.kept.take().view(self.dtype).as_strided(*self.place)


@contextmanager
def offload_activations(least: int) -> Iterator[None]:
    """See :func:`millpond.torch.offload_activations`."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    #: By memory and version, what is kept already; and what was kept last.
    known: weakref.WeakValueDictionary[tuple[int, int], Kept] = weakref.WeakValueDictionary()
    last: weakref.ref[Kept] | None = None

    def pack(tensor: Any) -> Any:
        nonlocal last
        if not tensor.is_cuda or tensor.nbytes < least or isinstance(tensor, torch.nn.Parameter):
            return tensor
        if is_traceable_wrapper_subclass(tensor) or tensor.is_sparse:
            return tensor
        storage = tensor.untyped_storage()
        if tensor.nbytes * _MOST_UNUSED < storage.nbytes() or storage._cdata in _held:
            return tensor
        key = storage._cdata, tensor._version
        kept = known.get(key)
        if kept is None:
            kept = known[key] = Kept(torch, storage, last() if last is not None else None)
            last = weakref.ref(kept)
        return View(kept, tensor)

    def unpack(packed: Any) -> Any:
        return packed.tensor() if isinstance(packed, View) else packed

    for number in [number for number, storage in _held.items() if storage.expired()]:
        del _held[number]
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
