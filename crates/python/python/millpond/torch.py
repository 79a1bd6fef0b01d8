"""PyTorch's allocator: ``millpond.torch.enable()`` before the first use of CUDA, and the program stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack, overload
from warnings import warn

from . import _millpond, _shared
from ._torch_modules import OffloadModules
from ._torch_offload import Offload, offload_all

if TYPE_CHECKING:
    from ._options import Options

#: What :func:`enable` takes where nothing else is said.
DEFAULT_BACKEND = "native-interface"

_enabled: str | None = None


def is_enabled() -> bool:
    """Whether PyTorch allocates from millpond."""
    return _enabled is not None


def backend() -> str | None:
    """How PyTorch reaches the pools; ``None`` before :func:`enable`."""
    return _enabled


def enable(
    *, backend: Literal["native-interface", "plug-in"] | None = None, pinned: bool = False, **options: Unpack[Options]
) -> None:
    """Makes millpond PyTorch's allocator, on all GPUs.

    Call it before the first use of CUDA: PyTorch does not change an allocator that was used. The options are those of
    :class:`millpond.Pool`; each GPU gets a pool of its own with them, when it is first used. A second call without
    options does nothing. With ``MILLPOND_DISABLE=1`` in the environment, no call does anything.

    ``torch.cuda``'s own figures (``memory_allocated``, ``max_memory_reserved``, ``memory_stats``, ``memory_summary``
    and their like) then are the pool's. docs/pytorch.md has a table of what works with each backend.

    Args:
        backend: ``"native-interface"`` derives from the class of PyTorch's own allocator. Where there is no library for this
            PyTorch, one is built, once. Where that fails, the plug-in is used, with a warning that says why. ``"plug-in"``
            uses PyTorch's hooks for allocators of others, which leave many functions out. By default what the environment
            variable ``MILLPOND_TORCH_BACKEND`` says, else the native interface.

        pinned: PyTorch's pinned memory (``Tensor.pin_memory``, ``DataLoader(pin_memory=True)``) comes from a pool, too:
            ``millpond.pool(0, memory="pinned")``. That needs the native interface.

    Raises:
        TypeError: for a name that is no option, or a value of the wrong type.
        ValueError: for a backend that is none, ``pinned`` with the plug-in, or another ``MILLPOND_OFFLOAD`` than ``optimizer``.
            Also for ``PYTORCH_CUDA_ALLOC_CONF`` with a name that PyTorch does not know, or with another backend.
        millpond.Error: where PyTorch has no CUDA, or used it already.
    """
    if _shared.is_disabled("PyTorch"):
        return
    wanted = backend or environ.get("MILLPOND_TORCH_BACKEND") or DEFAULT_BACKEND
    if wanted not in ("native-interface", "plug-in"):
        raise ValueError(f"there is no backend {wanted!r}: pass 'native-interface' or 'plug-in'")
    offloads = environ.get("MILLPOND_OFFLOAD") or None
    if offloads not in (None, "optimizer"):
        raise ValueError(f"MILLPOND_OFFLOAD is {offloads!r}: the only value is 'optimizer'")
    if pinned and wanted != "native-interface":
        raise ValueError("pinned=True needs PyTorch's native interface: pass backend='native-interface' as well")
    if _enabled and not options:
        return
    import torch

    if options:
        _millpond.configure(**options)
    if _enabled:
        return
    from . import _torch_nccl, _torch_settings

    _torch_nccl.keep_from_registering()
    has_threshold = _torch_settings.from_environment(torch, pinned=pinned) or "release_threshold" in options
    _enable(torch, wanted, pinned=pinned)
    if offloads:
        offload_optimizers()
    _torch_settings.replace_settings(torch, pinned=pinned, has_threshold=has_threshold)


def _enable(torch: Any, wanted: str, *, pinned: bool) -> None:
    global _enabled
    from ._torch_captures import release_failed

    release_failed(torch.cuda.CUDAGraph)
    if wanted == "native-interface" and _derive(torch, pinned=pinned):
        _enabled = "native-interface"
        from ._torch_sharing import replace_rebuild

        replace_rebuild()
        return
    _plug(torch)
    _enabled = "plug-in"
    from ._torch_figures import replace_figures

    replace_figures(torch)


@contextmanager
def tag(name: str) -> Iterator[None]:
    """What PyTorch allocates on this thread meanwhile belongs to a tag, which :func:`sleep` can put to sleep on its own.

    It does not change whose the tensors are that exist. While a graph is captured, all belongs to the graph.
    """
    before = _millpond.set_tag(name)
    try:
        yield
    finally:
        _millpond.set_tag(before)


def sleep(tag: str | None = None, *, keep: Literal["pinned", "nothing"] = "pinned") -> int:
    """Gives the memory of a tag's tensors back to the GPUs, or of all tensors. Returns the bytes given back.

    Tensors stay at their addresses, and captured graphs stay valid. They must not be used until :func:`wake`. With
    ``keep="pinned"`` their bytes go to pinned memory of the host, with ``keep="nothing"`` they are dropped. Waits for the
    GPUs. docs/sleep.md says more.

    Raises:
        ValueError: for a tag that has no memory, or another ``keep``.
        millpond.Error: where the host has too little pinned memory, or a graph is being captured.
    """
    return sum(pool.sleep(keep) for pool in _pools(tag))


def wake(tag: str | None = None) -> None:
    """Ends a sleep of a tag, or of all: returns once all bytes are in place.

    Raises:
        ValueError: for a tag that has no memory.
        millpond.OutOfMemoryError: where a GPU lacks memory. Make room, and try again: nothing is lost.
    """
    for pool in _pools(tag):
        pool.wake()


class _Optimizer(Protocol):
    param_groups: list[dict[str, Any]]


@overload
def offload(what: _Optimizer, *, tag: str | None = None) -> Offload: ...
@overload
def offload(what: Any, *, tag: str | None = None, device: Any = None) -> OffloadModules: ...
def offload(what: Any, *, tag: str | None = None, device: Any = None) -> Offload | OffloadModules:
    """Has an optimizer's state on the GPU only around its steps, or modules only while they run.

    What is not needed is evicted, behind the work so far: its bytes go to pinned memory of the host, and others use its memory. It
    comes back at the same addresses, beside the work before it is needed. Results are what they were. docs/beyond.md says more.

    *An optimizer*: its state comes back during the backward, as the backward frees memory, and leaves behind the step. Between the
    steps, the state must not be read: ``state_dict`` brings it back, as does ``restore`` of what is returned.

    *Modules*: one is there from the beginning of its forward or backward until another one begins. The one that came next the last
    time comes back meanwhile, if there is room. Its parameters must not be used otherwise: ``state_dict`` brings it back, as does
    ``restore`` of what is returned. Before a step, an optimizer has the parameters brought back that it has.

    Parameters, buffers and state move once, when they get the tag. Their tensors stay, and so do views; the addresses change. So
    call it before a graph is captured.

    Args:
        what: A ``torch.optim.Optimizer``, a ``torch.nn.Module``, or modules that run in turn. Memory that two modules share stays on
            the GPU.
        tag: The name among the pool's tags, ``"optimizer"`` or ``"model"`` by default, with a number where that is another call's,
            as ``"optimizer-2"``. Large states and several modules have more tags, such as ``"optimizer.2"``.
        device: A GPU to which modules on the CPU are brought, one after another.

    Raises:
        millpond.Error: before :func:`enable`.
        TypeError: for something else.
        ValueError: for a module that has nothing on a GPU, that is offloaded already, or whose parameters FSDP has. Also for a
            ``tag`` under which others have memory.
    """
    _check_enabled()
    if hasattr(what, "param_groups"):
        if device is not None:
            raise TypeError("device is for modules: an optimizer's state is where its parameters are")
        return Offload(what, tag)
    return OffloadModules(list(what) if isinstance(what, (list, tuple)) else [what], tag, device)


def offload_optimizers() -> None:
    """Offloads each optimizer of the process, from its first step on: :func:`offload` for scripts that nobody changes.

    ``millpond run --offload optimizer``, or ``MILLPOND_OFFLOAD=optimizer`` in the environment, has :func:`enable` do it.
    """
    offload_all()


def _check_enabled() -> None:
    if not is_enabled():
        from ._errors import Error

        raise Error("PyTorch does not allocate from millpond: call millpond.torch.enable() at the start of the program")


def _pools(tag: str | None) -> list[_millpond.Pool]:
    pools = [_millpond.device_pool(ordinal) for ordinal in _millpond.devices_in_use()]
    if tag is None:
        return pools
    known = {known for pool in pools for known in pool.tags}
    if tag not in known:
        names = ", ".join(repr(name) for name in sorted(known)) or "none"
        raise ValueError(f"nothing was allocated under the tag {tag!r}; the tags are: {names}")
    return [pool.tagged(tag) for pool in pools if tag in pool.tags]


def _derive(torch: Any, *, pinned: bool) -> bool:
    """Whether there is a library for this PyTorch, which then is in use."""
    from ._torch_shim import install

    global throws_out_of_memory
    _check_cuda(torch)
    try:
        missing = install(torch, _millpond.torch_shim_table(), pinned=pinned)
    except RuntimeError as error:
        raise _used_already(error) from error
    if missing is None:
        throws_out_of_memory = True
        return True
    warn(
        f"millpond uses PyTorch's plug-in interface, which leaves out memory snapshots, CUDA graph trees, MemPool, "
        f"cudnn.benchmark, tensors of several processes and pinned memory: {missing}",
        stacklevel=4,
    )
    return False


def _plug(torch: Any) -> None:
    from ._errors import Error
    from ._torch_plug_in import why_not

    _check_cuda(torch)
    why = why_not(Path(torch.__file__).parent / "include")
    if why is not None:
        raise Error(
            f"millpond does not give its hooks to PyTorch {torch.__version__}: {why}. Use a PyTorch that this millpond knows, "
            "or another millpond"
        )
    throws, hooks = _millpond.torch_hooks()
    addresses = dict(hooks)
    plugged = torch._C._cuda_customAllocator(addresses.pop("alloc"), addresses.pop("free"))
    for setter, address in addresses.items():
        getattr(plugged, setter)(address)
    try:
        torch._C._cuda_changeCurrentAllocator(plugged)
    except RuntimeError as error:
        raise _used_already(error) from error
    # PyTorch holds it by a pointer of its own; this one is for those who want to look at it.
    global _plugged, throws_out_of_memory
    _plugged, throws_out_of_memory = plugged, throws


def _check_cuda(torch: Any) -> None:
    from ._errors import Error

    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Error("this PyTorch was built without CUDA: install one with it (pip install torch)")


def _used_already(error: RuntimeError) -> Exception:
    from ._errors import Error

    if "already initialized" not in str(error):
        return Error(f"PyTorch did not take millpond as its allocator: {error}")
    return Error(
        "PyTorch has used CUDA already, and then its allocator cannot change: call millpond.torch.enable() at the "
        "start of the program"
    )


_plugged: Any = None

#: Whether a failing allocation raises ``torch.OutOfMemoryError``. Else, with a PyTorch whose libraries have other
#: names, it raises ``RuntimeError``.
throws_out_of_memory: bool = False
