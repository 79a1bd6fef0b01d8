"""A memory resource for RMM, and so for cuDF, cuML and the rest of RAPIDS: ``millpond.rmm.enable()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _millpond, _shared

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Options


def resource(device: Any = None) -> Any:
    """An RMM memory resource over the pool of a GPU, ordered by the streams that RMM passes.

    RMM calls it through Python, at a few microseconds a call. C++ programs use ``millpond.hpp``'s resource instead.
    """
    import rmm

    pool = _shared.pool(device)

    def allocate(size: int, stream: Any) -> int:
        return pool.allocate_address(size, stream)

    def deallocate(address: int, _size: int, stream: Any) -> None:
        pool.free_address(address, stream)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def enable(device: Any = None, **options: Unpack[Options]) -> None:
    """Makes millpond RMM's resource for a GPU. The options are those of :class:`millpond.Pool`."""
    import rmm

    if options:
        _millpond.configure(**options)
    rmm.mr.set_per_device_resource(_shared.ordinal_of(device), resource(device))
