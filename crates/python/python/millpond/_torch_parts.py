"""Memory of PyTorch's under a tag, which is evicted and restored as one, and a thread that restores beside the program."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

from . import _millpond
from ._errors import Error

#: Bytes after which memory that was moved under a tag is given back, so that both are held at once of no more than this.
_AT_ONCE = 1 << 30


class Part:
    """What has one tag, on all GPUs."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        #: Whether a restore was begun early that nothing has waited for yet.
        #: Its result is how many bytes are still away.
        self.comes: Future[int] | None = None

    def pools(self) -> list[tuple[int, _millpond.Pool]]:
        """The GPUs that have memory under the tag."""
        pools = [(ordinal, _millpond.device_pool(ordinal)) for ordinal in _millpond.devices_in_use()]
        return [(ordinal, pool.tagged(self.tag)) for ordinal, pool in pools if self.tag in pool.tags]

    def sizes(self) -> dict[int, int]:
        """Bytes of its tensors, by GPU."""
        return {ordinal: pool.stats().requested.current for ordinal, pool in self.pools()}

    def evict(self) -> None:
        """Behind the work so far."""
        self.wait()
        for ordinal, pool in self.pools():
            pool.evict(stream_of(ordinal))

    def restore(self) -> None:
        """Before the work that comes."""
        self.wait()
        for ordinal, pool in self.pools():
            pool.restore(stream_of(ordinal))

    def restore_ahead(self) -> None:
        """Begins to restore it, on a thread beside the program: to find pages takes the host a while. If there is no room, it does
        nothing."""
        if self.comes is None:
            self.comes = _beside(self._begin)

    def restore_free(self) -> None:
        """The same, for as much of it as the pools have free memory now."""
        if self.is_away:
            self.comes = _beside(self._begin_with_free)

    def _begin(self) -> int:
        try:
            for _, pool in self.pools():
                pool.restore_ahead()
        except Error:
            # Whoever needs it tries again, and is told.
            pass
        return 0

    def _begin_with_free(self) -> int:
        try:
            return sum(pool.restore_free() for _, pool in self.pools())
        except Error:
            return 0

    @property
    def is_away(self) -> bool:
        """Whether nobody has begun to restore it, or only a part of it was restored."""
        return self.comes is None or (self.comes.done() and self.comes.result() > 0)

    def wait(self) -> None:
        """Waits for the thread, and not for the GPU."""
        if self.comes is not None:
            self.comes.result()
            self.comes = None

    @property
    def has_come(self) -> bool:
        """Whether a restore that was begun early could be taken back at once."""
        return self.comes is not None and self.comes.done()


def stream_of(ordinal: int) -> int:
    """The GPU's current stream."""
    import torch

    return int(torch.cuda.current_stream(ordinal).cuda_stream)


# ---- tensors that come under a tag -------------------------------------------------------------------


@contextmanager
def under(tag: str) -> Iterator[None]:
    """What PyTorch allocates on this thread meanwhile has the tag."""
    before = _millpond.set_tag(tag)
    try:
        yield
    finally:
        _millpond.set_tag(before)


def storages(tensors: Iterable[Any]) -> dict[int, Any]:
    """The memory of tensors on GPUs, by a number of its own. Tensors that share it are one."""
    found = {}
    for tensor in tensors:
        # A DTensor has no memory of its own: what it stands for here has.
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.is_cuda:
            storage = tensor.untyped_storage()
            # Memory of other libraries, or of other processes, stays where it is.
            if storage.nbytes() > 0 and storage.resizable():
                found[storage._cdata] = storage
    return found


#: What is under a tag, for as long as there is such memory. PyTorch is gone before this module is.
_taken: dict[int, Any] = {}
atexit.register(_taken.clear)


def is_taken(number: int) -> bool:
    """Whether memory is under a tag already, by its number."""
    return number in _taken and not _taken[number].expired()


def note(taken: Iterable[Any]) -> None:
    """Notes that memory is under a tag."""
    from torch.multiprocessing.reductions import StorageWeakRef

    # The number of memory that is gone is used again only once nothing refers to it.
    for number in [number for number, one in _taken.items() if one.expired()]:
        del _taken[number]
    _taken.update({storage._cdata: StorageWeakRef(storage) for storage in taken})


def forget(released: Iterable[Any]) -> None:
    """Notes that memory may be moved to another tag."""
    for storage in released:
        _taken.pop(storage._cdata, None)


def take(wanted: Sequence[tuple[Any, Part]]) -> None:
    """Moves the memory of tensors under tags. The tensors, their views and all who hold them stay as they are; only the address
    changes."""
    import torch

    moved: dict[int, int] = {}
    for storage, part in wanted:
        ordinal = storage.device.index
        bytes_in_place = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        bytes_in_place.record_stream(torch.cuda.current_stream(ordinal))
        with under(part.tag):
            # To as many bytes: PyTorch allocates anew, copies, and frees.
            storage.resize_(storage.nbytes())
        moved[ordinal] = moved.get(ordinal, 0) + storage.nbytes()
        if moved[ordinal] >= _AT_ONCE:
            _give_back(ordinal, moved.pop(ordinal))
    for ordinal, bytes_moved in moved.items():
        _give_back(ordinal, bytes_moved)
    note(storage for storage, _ in wanted)


def _give_back(ordinal: int, freed: int) -> None:
    """Has the GPU's pool hold less, once the copies are complete."""
    import torch

    torch.cuda.synchronize(ordinal)
    pool = _millpond.device_pool(ordinal)
    pool.trim(max(pool.stats().reserved.current - freed, 0))


# ---- whose tags they are -----------------------------------------------------------------------------

#: Who offloads under a tag, as long as that is there.
_owners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def claim(tag: str | None, default: str, owner: Any) -> str:
    """A tag of the owner's alone: what others have under it would leave the GPU, too. Without one, the default, with a number if that
    is another's.

    Raises:
        ValueError: for a tag that is another's.
    """
    if tag is not None and _is_anothers(tag):
        raise ValueError(f"there is memory of others under the tag {tag!r}, which would leave the GPU, too: pass another tag")
    names = (default if number == 1 else f"{default}-{number}" for number in count(1))
    found = tag if tag is not None else next(name for name in names if not _is_anothers(name))
    _owners[found] = owner
    # It may have been evicted by who had it before, and then takes nothing.
    for part in _parts_of(found):
        part.restore()
    return found


def _parts_of(tag: str) -> list[Part]:
    pools = (_millpond.device_pool(ordinal) for ordinal in _millpond.devices_in_use())
    return [Part(known) for known in {known for pool in pools for known in pool.tags} if f"{known}.".startswith(f"{tag}.")]


def _is_anothers(tag: str) -> bool:
    return tag in _owners or any(pool.stats().blocks.current > 0 for part in _parts_of(tag) for _, pool in part.pools())


# ---- steps -------------------------------------------------------------------------------------------


def before_update(
    get_ready: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Has something called before an optimizer's step changes anything. In a closure of the step are the forward and the backward,
    so it is called behind that. Returns what the step gets instead, as PyTorch's hooks do."""
    # The optimizer is the first of them.
    closure = kwargs.get("closure") or next(filter(callable, args[1:]), None)
    if closure is None:
        get_ready()
        return None

    def closed() -> Any:
        loss = closure()
        get_ready()
        return loss

    kwargs = {name: closed if value is closure else value for name, value in kwargs.items()}
    return tuple(closed if value is closure else value for value in args), kwargs


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method for who must not keep its object: PyTorch keeps hooks where nothing finds a circle."""
    weak = weakref.WeakMethod(method)

    def called(*args: Any) -> Any:
        found = weak()
        return None if found is None else found(*args)

    return called


# ---- a thread beside the program ---------------------------------------------------------------------

_thread: ThreadPoolExecutor | None = None
_is_thread = threading.local()


def _beside(call: Callable[[], int]) -> Future[int]:
    global _thread
    if _thread is None:
        _thread = ThreadPoolExecutor(1, "millpond offload", initializer=lambda: setattr(_is_thread, "here", True))
    return _thread.submit(call)


def when_memory_is_short(give: Callable[[], bool]) -> list[_millpond.Callback]:
    """Has the pools of the GPUs call a method when they have no memory, before that is an error."""
    weak = weakly(give)

    def asked(_bytes: int) -> bool:
        # What the thread restores needs memory itself.
        return not getattr(_is_thread, "here", False) and bool(weak())

    return [_millpond.device_pool(ordinal).on_reclaim(asked) for ordinal in _millpond.devices_in_use()]
