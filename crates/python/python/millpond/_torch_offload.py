"""Optimizers whose state is on the GPU only around their steps: :func:`millpond.torch.offload`.

**One step.** Once the backward has freed as much memory as a part of the state takes, that part begins to come back, on a stream for
copies. The step waits for all parts. Behind it they are evicted. A state that is new is moved under its tags after the step that
made it.
"""

from __future__ import annotations

import weakref
from typing import Any

from . import _millpond
from ._torch_parts import Part, before_update, claim, forget, is_taken, storages, take, weakly, when_memory_is_short

#: A state is in so many parts at most, of so many bytes at least: each comes back when there is room for it.
_MOST_PARTS = 8
_LEAST_BYTES = 256 << 20

#: A state of fewer bytes stays on the GPU: to move it takes longer than it is worth.
_LEAST_STATE = 16 << 20

#: So many of the parameters say how far the backward is.
_MOST_POINTS = 32


class Offload:
    """What :func:`millpond.torch.offload` does for one optimizer, until :meth:`remove`."""

    def __init__(self, optimizer: Any, tag: str | None) -> None:
        self._optimizer, self._tag = optimizer, claim(tag, "optimizer", self)
        self._parts: list[Part] = []
        self._lacks = False
        #: By GPU, the bytes of each part, and the most that were needed at once so far.
        self._sizes: list[dict[int, int]] = []
        self._most: dict[int, int] = {}
        #: Backwards since the last step, and how many there were before that.
        self._backwards, self._usual = 0, 0
        self._may_come = True
        self._callbacks: list[_millpond.Callback] = []
        register = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        self._hooks = [register[0](self._before_step), register[1](self._after_step)]
        self._hooks.append(optimizer.register_state_dict_pre_hook(self._before_reading))
        self._hooks.append(optimizer.register_load_state_dict_pre_hook(self._before_loading))
        self._hooks.append(optimizer.register_load_state_dict_post_hook(self._after_loading))
        parameters = [one for one in self._parameters() if one.requires_grad]
        # The backward comes to the first parameters last.
        for one in parameters[:1]:
            self._hooks.append(one.register_post_accumulate_grad_hook(weakly(self._at_the_end)))
        for one in parameters[1 :: max(len(parameters) // _MOST_POINTS, 1)]:
            self._hooks.append(one.register_post_accumulate_grad_hook(weakly(self._on_the_way)))
        self._take_state()

    def remove(self) -> None:
        """Brings the state back. It stays on the GPU from now on."""
        for hook in [*self._hooks, *self._callbacks]:
            hook.remove()
        self._hooks, self._callbacks = [], []
        self.restore()
        forget(self._state().values())

    def restore(self) -> None:
        """Brings the state back until the end of the next step: to be read, or changed."""
        self._may_come = False
        for part in self._parts:
            part.restore()

    # ---- hooks -----------------------------------------------------------------------------------

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return before_update(self._get_ready, args, kwargs)

    def _get_ready(self) -> None:
        if self._parts:
            self.restore()
            self._note_most()
        self._lacks |= any(one.grad is not None and not self._optimizer.state.get(one) for one in self._parameters())

    def _after_step(self, _optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if self._lacks:
            self._take_state()
        for part in self._parts:
            part.evict()
        self._lacks, self._may_come = False, True
        self._backwards, self._usual = 0, self._backwards

    def _at_the_end(self, parameter: Any) -> None:
        self._on_the_way(parameter)
        self._backwards += 1

    def _on_the_way(self, _parameter: Any) -> None:
        """Has the parts come back that there is room for."""
        if not self._may_come or self._backwards + 1 < self._usual:
            return
        if not any(part.is_away for part in self._parts):
            # Also where there is no part.
            return
        requested = {at: pool.stats().requested for at, pool in _pools()}
        room = {at: max(self._most[at], one.high) - one.current for at, one in requested.items() if at in self._most}
        for part, sizes in zip(self._parts, self._sizes):
            for at, size in sizes.items():
                room[at] -= size
            if part.is_away:
                if any(room[at] < 0 for at in sizes):
                    return
                part.restore_free()

    def _before_reading(self, _optimizer: Any) -> None:
        self.restore()

    def _before_loading(self, _optimizer: Any, _state: Any) -> None:
        self.restore()

    def _after_loading(self, _optimizer: Any) -> None:
        self._take_state()

    # ---- memory ----------------------------------------------------------------------------------

    def _take_state(self) -> None:
        """Moves what the optimizer has under its tags, unless that was done. Parameters and gradients are no part of it."""
        state = self._state()
        if not self._parts and sum(one.nbytes() for one in state.values()) < _LEAST_STATE:
            return
        others = storages(self._parameters()) | storages(one.grad for one in self._parameters() if one.grad is not None)
        new = [one for number, one in state.items() if number not in others and not is_taken(number)]
        if not new:
            return
        take(self._assign(new))
        self._note_most()
        if not self._callbacks:
            self._callbacks = when_memory_is_short(self._give)

    def _assign(self, new: list[Any]) -> list[tuple[Any, Part]]:
        """A part for each, in the order in which they are."""
        total, before = sum(one.nbytes() for one in new), 0
        if not self._parts:
            count = min(max(total // _LEAST_BYTES, 1), _MOST_PARTS)
            tags = [self._tag, *(f"{self._tag}.{number}" for number in range(2, count + 1))]
            self._parts = [Part(tag) for tag in tags]
        wanted = []
        for one in new:
            wanted.append((one, self._parts[before * len(self._parts) // total]))
            before += one.nbytes()
        return wanted

    def _note_most(self) -> None:
        """Called where the state is there."""
        self._sizes = [part.sizes() for part in self._parts]
        for at, pool in _pools():
            requested = pool.stats().requested
            state = sum(sizes.get(at, 0) for sizes in self._sizes)
            self._most[at] = max(self._most.get(at, 0), requested.high, requested.current + state)

    def _give(self) -> bool:
        """Memory is short: what comes early waits until the step."""
        early = [part for part in self._parts if part.has_come]
        self._may_come = False
        for part in early:
            part.evict()
        return bool(early)

    def _state(self) -> dict[int, Any]:
        from torch.utils._pytree import tree_leaves

        leaves = tree_leaves(list(self._optimizer.state.values()))
        return storages(leaf for leaf in leaves if hasattr(leaf, "is_cuda"))

    def _parameters(self) -> list[Any]:
        return [one for group in self._optimizer.param_groups for one in group["params"]]


def _pools() -> list[tuple[int, _millpond.Pool]]:
    return [(ordinal, _millpond.device_pool(ordinal)) for ordinal in _millpond.devices_in_use()]


# ---- scripts that nobody changes ---------------------------------------------------------------------

_known: weakref.WeakSet[Any] | None = None


def offload_all() -> None:
    """Offloads each optimizer of the process when it takes its first step."""
    global _known
    if _known is None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        _known = weakref.WeakSet()
        register_optimizer_step_pre_hook(_before_first_step)


def _before_first_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    assert _known is not None
    if optimizer in _known:
        return
    _known.add(optimizer)
    # PyTorch goes on to the optimizer's own hooks, so this step has them already.
    Offload(optimizer, None)
