"""A memory resource for RMM, and so for cuDF, cuML and the rest of RAPIDS: ``millpond.rmm.enable()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Unpack

from . import _millpond, _shared

if TYPE_CHECKING:
    from ._options import Options


#: What RMM calls, for each GPU. RMM copies a resource and its function pointers, without a share in the functions. So
#: they stay until the process ends.
_functions: dict[int, tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]] = {}


def resource(device: Any = None) -> Any:
    """An RMM memory resource over the pool of a GPU, ordered by the streams that RMM passes.

    RMM calls it through Python, at a few microseconds a call. C++ programs use ``millpond.hpp``'s resource instead.
    """
    import rmm

    ordinal = _shared.ordinal_of(device)
    pool = _shared.pool(ordinal)

    def allocate(size: int, stream: Any) -> int:
        return pool.allocate_address(size, stream)

    def deallocate(address: int, _size: int, stream: Any) -> None:
        pool.free_address(address, stream)

    return rmm.mr.CallbackMemoryResource(*_functions.setdefault(ordinal, (allocate, deallocate)))


def enable(device: Any = None, **options: Unpack[Options]) -> None:
    """Makes millpond RMM's resource for a GPU. The options are those of :class:`millpond.Pool`."""
    import rmm

    if options:
        _millpond.configure(**options)
    rmm.mr.set_per_device_resource(_shared.ordinal_of(device), resource(device))
