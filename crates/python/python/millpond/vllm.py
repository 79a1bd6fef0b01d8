"""vLLM's sleep mode: ``millpond.vllm.enable()`` in each process of vLLM's that has a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from typing import TYPE_CHECKING, Any, Unpack

from . import _shared
from . import torch as _torch

if TYPE_CHECKING:
    from ._millpond import Pool
    from ._options import Options

#: The name of the backend in vLLM's settings: ``--sleep-mode-backend millpond``.
BACKEND = "millpond"

#: What a wake may leave asleep. vLLM wakes everything else each time.
DEFERRABLE_TAGS = ("weights", "kv_cache")


class Allocator:
    """What vLLM has for its sleep mode, over the tags of PyTorch's pools (:func:`millpond.torch.tag`).

    It has the methods of vLLM 0.33's ``CuMemAllocator``, and takes its place. Memory that vLLM allocates outside of
    :meth:`use_memory_pool` has no tag, and stays awake.
    """

    default_tag = "default"

    _graphs: Any = None

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What this thread allocates meanwhile has the tag."""
        with _torch.tag(tag or self.default_tag):
            yield

    @contextmanager
    def cudagraph_pool(self) -> Iterator[Any]:
        """The pool for the graphs that are captured meanwhile. Their memory stays awake, so that they stay valid."""
        import torch

        self._graphs = self._graphs or torch.cuda.graph_pool_handle()
        yield self._graphs

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Puts all tags to sleep: these keep their bytes in pinned memory, those of the others are dropped."""
        kept = (self.default_tag,) if offload_tags is None else _tuple(offload_tags)
        for tag in self._tags(asleep=False):
            _torch.sleep(tag, keep="pinned" if tag in kept else "nothing")

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Puts these tags to sleep, and drops their bytes."""
        for tag in self._tags(asleep=False) & set(_tuple(tags)):
            _torch.sleep(tag, keep="nothing")

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wakes these tags of those that may wait (:data:`DEFERRABLE_TAGS`), and all others; or all."""
        for tag in self._tags(asleep=True):
            if tags is None or tag in tags or tag not in DEFERRABLE_TAGS:
                _torch.wake(tag)

    def get_current_usage(self) -> int:
        """Bytes in live blocks that have a tag."""
        return sum(pool.stats().allocated.current for _, pool in self._tagged())

    def release_pools(self) -> None:
        """Nothing: a tag's memory goes back with its tensors."""

    close = release_pools

    def _tags(self, *, asleep: bool) -> set[str]:
        return {tag for tag, pool in self._tagged() if pool.is_asleep == asleep}

    @staticmethod
    def _tagged() -> Iterator[tuple[str, Pool]]:
        """Each tag, and the part of a GPU's pool that is its."""
        return ((tag, pool.tagged(tag)) for pool in _torch._pools(None) for tag in pool.tags)


_allocator = Allocator()


def enable(**options: Unpack[Options]) -> None:
    """Makes millpond the allocator of PyTorch and of vLLM's sleep mode, in this process.

    Call it before vLLM allocates on a GPU. vLLM's workers are processes of their own: with ``MILLPOND_VLLM=1`` in the
    environment, each of them calls it when it loads vLLM's plugins. Then start vLLM with ``--enable-sleep-mode``, and, if
    you like, ``--sleep-mode-backend millpond``. The options are those of :class:`millpond.Pool`.

    Raises:
        ImportError: where there is no vLLM with ``CuMemAllocator``.
        millpond.Error: as :func:`millpond.torch.enable`.
    """
    if _shared.is_disabled("vLLM"):
        return
    install()
    _torch.enable(**options)


def install() -> None:
    """The part of :func:`enable` that is vLLM's."""
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    CuMemAllocator.get_instance = staticmethod(lambda: _allocator)
    try:
        SleepModeBackendFactory.register_backend(BACKEND, __name__, "SleepBackend")
    except ValueError:
        pass  # It is registered.


def plugin() -> None:
    """What vLLM calls in each of its processes (the entry point of ``vllm.general_plugins``)."""
    if environ.get("MILLPOND_VLLM") == "1":
        enable()


def _tuple(tags: tuple[str, ...] | list[str] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)


def _make_backend() -> type[Any]:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

    class SleepBackend(SleepModeBackend):  # type: ignore[misc]
        """vLLM's interface for a mechanism that frees and restores a GPU's memory."""

        def suspend(self, level: int = 1, tags: tuple[str, ...] | None = None) -> None:
            kept = tags if tags is not None else ("runtime", "cudagraph", *(("weights",) if level == 1 else ()))
            _allocator.sleep(tuple(kept))
            self._state = "SUSPENDED"

        def resume(self, tags: list[str] | None = None) -> None:
            self._state = "RESUMING"
            _allocator.wake_up(tags)
            self._state = "SUSPENDED" if _allocator._tags(asleep=True) else "RUNNING"

        def discard(self, tags: tuple[str, ...]) -> None:
            _allocator.discard(tags)
            self._state = "SUSPENDED"

        @classmethod
        def preserves_communicators(cls) -> bool:
            return True

        @classmethod
        def preserves_compiled_artifacts(cls) -> bool:
            return True

        @classmethod
        def preserves_graphs_with_communicators(cls) -> bool:
            return True

    return SleepBackend


def __getattr__(name: str) -> Any:
    if name == "SleepBackend":
        globals()[name] = _make_backend()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
