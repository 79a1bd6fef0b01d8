"""A memory resource for RMM, and so for cuDF, cuML and the rest of RAPIDS: ``millpond.rmm.enable()``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Callable, Unpack
from warnings import warn

from . import _millpond, _rmm_resource, _shared
from ._errors import Error

if TYPE_CHECKING:
    from ._options import Options


#: What RMM calls where there is no resource in C++, for each GPU. RMM copies a resource and its function pointers, without
#: a share in the functions. So they stay until the process ends.
_functions: dict[int, tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]] = {}

#: Streams that were registered stay.
_registered: list[Any] = []


def resource(device: Any = None) -> Any:
    """An RMM memory resource over the pool of a GPU, ordered by the streams that RMM passes.

    RMM's C++ calls it without Python. That needs a library for this version of RMM. Where there is none, one is built, once.
    Where that fails, it is a ``CallbackMemoryResource``, which calls Python, and a warning says why. The pool is made by the
    first allocation.

    Raises:
        millpond.Error: for an RMM without a library that is too old for callbacks, too.
    """
    import rmm

    ordinal = _shared.ordinal_of(device)
    in_cpp, missing = _class_of(rmm)
    if in_cpp is not None:
        return in_cpp(ordinal, _millpond.rmm_table())
    if not hasattr(rmm.pylibrmm.stream.Stream, "__cuda_stream__"):
        raise Error(f"this RMM does not say on which stream it allocates: use RMM 25.10 or later ({missing})")
    warn(f"millpond calls Python for each allocation of RMM: {missing}", stacklevel=2)
    return rmm.mr.CallbackMemoryResource(*_functions.setdefault(ordinal, _callbacks(ordinal)))


def enable(device: Any = None, **options: Unpack[Options]) -> None:
    """Makes millpond RMM's resource for a GPU; without a device, for all.

    A GPU gets its pool when it is first used. The options are those of :class:`millpond.Pool`. With ``MILLPOND_DISABLE=1`` in the
    environment, this does nothing.
    """
    if _shared.is_disabled("RMM"):
        return
    import rmm

    if options:
        _millpond.configure(**options)
    ordinals = range(_gpus()) if device is None else [_shared.ordinal_of(device)]
    for ordinal in ordinals:
        rmm.mr.set_per_device_resource(ordinal, resource(ordinal))


def register(streams: Any, device: Any = None) -> None:
    """Registers streams of a GPU, so that allocations and frees on them take the fast path.

    Args:
        streams: a stream, several, or a ``rmm.pylibrmm.cuda_stream_pool.CudaStreamPool``. They stay until the process
            ends. Streams that are passed as numbers must not be destroyed before.
    """
    size = getattr(streams, "get_pool_size", None)
    if size is not None:
        found = [streams.get_stream(number) for number in range(size())]
    else:
        found = list(streams) if isinstance(streams, (list, tuple, set)) else [streams]
    ordinal = _shared.ordinal_of(device)
    for stream in found:
        _millpond.keep_stream(ordinal, stream)
        _registered.append(stream)


#: The class of the compiled resource for this RMM, or why there is none.
_class_of = cache(_rmm_resource.load)


def _callbacks(ordinal: int) -> tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]:
    @cache
    def pool() -> _millpond.Pool:
        return _shared.pool(ordinal)

    def allocate(size: int, stream: Any) -> int:
        return pool().allocate_address(size, stream)

    def deallocate(address: int, _size: int, stream: Any) -> None:
        pool().free_address(address, stream)

    return allocate, deallocate


def _gpus() -> int:
    """How many GPUs there are. No context is created to count them."""
    from rmm._cuda.gpu import getDeviceCount

    return int(getDeviceCount())
