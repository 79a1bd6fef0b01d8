"""PyTorch's allocator: ``millpond.torch.enable()`` before the first use of CUDA, and the program stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from . import _millpond, _shared

if TYPE_CHECKING:
    from ._options import Options

_enabled = False


def is_enabled() -> bool:
    """Whether PyTorch allocates from millpond."""
    return _enabled


def enable(**options: Unpack[Options]) -> None:
    """Makes millpond PyTorch's allocator, on all GPUs.

    Call it before the first use of CUDA: PyTorch does not change an allocator that was used. The options are those of
    :class:`millpond.Pool`; each GPU gets a pool of its own with them, when it is first used. A second call without
    options does nothing.

    ``torch.cuda``'s own figures (``memory_allocated``, ``max_memory_reserved``, ``memory_stats``, ``memory_summary``
    and their like) then are the pool's. docs/pytorch.md says what PyTorch does not let a plugged allocator do.

    Raises:
        TypeError: for a name that is no option, or a value of the wrong type.
        millpond.Error: where PyTorch has no CUDA, or used it already.
    """
    global _enabled
    if _enabled and not options:
        return
    import torch

    if options:
        _millpond.configure(**options)
    if _enabled:
        return
    _plug(torch)
    _enabled = True
    from ._torch_figures import replace_figures

    replace_figures(torch)


def _plug(torch: Any) -> None:
    from ._errors import Error

    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Error("this PyTorch was built without CUDA: install one with it (pip install torch)")
    throws, hooks = _millpond.torch_hooks()
    addresses = dict(hooks)
    plugged = torch._C._cuda_customAllocator(addresses.pop("alloc"), addresses.pop("free"))
    for setter, address in addresses.items():
        getattr(plugged, setter)(address)
    try:
        torch._C._cuda_changeCurrentAllocator(plugged)
    except RuntimeError as error:
        raise Error(
            "PyTorch has used CUDA already, and then its allocator cannot change: call millpond.torch.enable() at the "
            "start of the program"
        ) from error
    # PyTorch holds it by a pointer of its own; this one is for those who want to look at it.
    global _plugged, throws_out_of_memory
    _plugged, throws_out_of_memory = plugged, throws


_plugged: Any = None

#: Whether a failing allocation raises ``torch.OutOfMemoryError``. Else, with a PyTorch whose libraries have other
#: names, it raises ``RuntimeError``.
throws_out_of_memory: bool = False
