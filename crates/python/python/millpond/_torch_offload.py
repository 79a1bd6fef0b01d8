"""An optimizer whose state is on the GPU only around its steps: :func:`millpond.torch.offload`."""

from __future__ import annotations

from typing import Any

from . import _millpond
from ._errors import OutOfMemoryError

#: A restore begins once so many of the optimizer's parameters still lack a gradient, of four. By then most of what the forward
#: kept is free.
_QUARTERS_LEFT = 1


class Offload:
    """What :func:`millpond.torch.offload` does for one optimizer, until :meth:`remove`."""

    def __init__(self, optimizer: Any, tag: str) -> None:
        self._optimizer, self._tag = optimizer, tag
        self._tag_before: list[str | None] = []
        register = optimizer.register_step_pre_hook, optimizer.register_step_post_hook
        self._hooks = [register[0](self._before_step), register[1](self._after_step)]
        self._hooks.append(optimizer.register_state_dict_pre_hook(self._before_reading))
        self._hooks.append(optimizer.register_load_state_dict_pre_hook(self._before_loading))
        self._hooks.append(optimizer.register_load_state_dict_post_hook(self._after_loading))
        parameters = [one for one in self._parameters() if one.requires_grad]
        if parameters:
            # The backward comes to the first parameters last.
            near_the_end = parameters[(len(parameters) - 1) * _QUARTERS_LEFT // 4]
            self._hooks.append(near_the_end.register_post_accumulate_grad_hook(self._near_the_end))

    def remove(self) -> None:
        """Brings the state back. It stays on the GPU from now on."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.restore()

    def restore(self) -> None:
        """Brings the state back until the end of the next step: to be read, or changed."""
        for ordinal, pool in self._pools():
            pool.restore(_current_stream(ordinal))

    # ---- hooks -----------------------------------------------------------------------------------

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The optimizer is the first of them.
        if any(callable(each) for each in args[1:]) or kwargs.get("closure") is not None:
            raise ValueError(
                "an optimizer that is offloaded takes no closure: the forward and the backward in it would use the optimizer's "
                "memory. Call them before step()"
            )
        self.restore()
        if self._lacks_state():
            self._enter_tag()

    def _after_step(self, _optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        self._leave_tag()
        for ordinal, pool in self._pools():
            pool.evict(_current_stream(ordinal))

    def _near_the_end(self, _parameter: Any) -> None:
        for _, pool in self._pools():
            try:
                pool.restore_ahead()
            except OutOfMemoryError:
                # There is more room before the step, which tries again.
                return

    def _before_reading(self, _optimizer: Any) -> None:
        self.restore()

    def _before_loading(self, _optimizer: Any, _state: Any) -> None:
        self.restore()
        self._enter_tag()

    def _after_loading(self, _optimizer: Any) -> None:
        self._leave_tag()

    # ---- tag and pools ---------------------------------------------------------------------------

    def _enter_tag(self) -> None:
        self._tag_before.append(_millpond.set_tag(self._tag))

    def _leave_tag(self) -> None:
        if self._tag_before:
            _millpond.set_tag(self._tag_before.pop())

    def _parameters(self) -> list[Any]:
        return [one for group in self._optimizer.param_groups for one in group["params"]]

    def _lacks_state(self) -> bool:
        return any(one.grad is not None and not self._optimizer.state.get(one) for one in self._parameters())

    def _pools(self) -> list[tuple[int, _millpond.Pool]]:
        pools = [(ordinal, _millpond.device_pool(ordinal)) for ordinal in _millpond.devices_in_use()]
        return [(ordinal, pool.tagged(self._tag)) for ordinal, pool in pools if self._tag in pool.tags]


def _current_stream(ordinal: int) -> int:
    import torch

    return int(torch.cuda.current_stream(ordinal).cuda_stream)
