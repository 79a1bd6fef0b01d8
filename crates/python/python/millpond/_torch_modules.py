"""Modules that are on the GPU while they run: :func:`millpond.torch.offload`.

**One turn.** A module begins its forward, or its backward. The others are evicted behind the work so far. The module is restored, and
the one that came after it the last time begins to come. It stays until another begins.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ._errors import OutOfMemoryError
from ._torch_parts import (
    Part,
    before_update,
    claim,
    forget,
    is_taken,
    note,
    storages,
    stream_of,
    take,
    under,
    weakly,
    when_memory_is_short,
)


class Turn:
    """One of the modules that take turns."""

    def __init__(self, module: Any, part: Part) -> None:
        self.module, self.part = module, part
        self.is_there = False
        #: Whether it came to run. Else somebody reads or changes it.
        self.came_to_run = False
        #: By GPU, the stream that waited for the last restore, and an event behind that.
        self.waited: dict[int, tuple[int, Any]] = {}
        #: Who came next the last time: after the forward, and after the backward.
        self.next: dict[bool, Turn] = {}
        #: An optimizer's parameters are known by that.
        self.parameters = {id(one) for one in module.parameters()}
        #: Whether nothing of it was on a GPU before.
        self.is_from_host = not storages(tensor for _, tensor in _named(module))

    def arrive(self) -> None:
        """Brings it back, before what comes on the current streams."""
        import torch

        if not self.is_there:
            self.part.restore()
            self.is_there = True
            self.waited = {}
            for ordinal, _ in self.part.pools():
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(ordinal))
                self.waited[ordinal] = (stream_of(ordinal), event)
        for ordinal, (stream, event) in self.waited.items():
            if stream_of(ordinal) != stream:
                torch.cuda.current_stream(ordinal).wait_event(event)

    def leave(self) -> None:
        """Gives the memory to others, behind the work so far."""
        if self.is_there or self.part.comes is not None:
            self.part.evict()
            self.is_there = self.came_to_run = False

    def forget(self) -> None:
        """What has moved may move to another tag."""
        forget(storages(tensor for _, tensor in _named(self.module)).values())


class OffloadModules:
    """What :func:`millpond.torch.offload` does for modules that take turns, until :meth:`remove`."""

    def __init__(self, modules: Sequence[Any], tag: str | None, device: Any) -> None:
        import torch
        import torch._dynamo

        for module in modules:
            _check(torch, module)
        # One that runs twice in a round is one turn.
        modules = list(dict.fromkeys(modules))
        device = None if device is None else torch.device(device)
        shared = _shared(modules)
        tag = claim(tag, "model", self)
        self._turns: list[Turn] = []
        try:
            for number, module in enumerate(modules, 1):
                turn = Turn(module, Part(tag if len(modules) == 1 else f"{tag}.{number}"))
                self._turns.append(turn)
                _bring(module, turn.part, device, shared)
                # A module may be as large as what is left.
                turn.part.evict()
        except BaseException:
            self._undo()
            raise
        _members.update(modules)
        for turn, after in zip(self._turns, [*self._turns[1:], *self._turns[:1]]):
            turn.next[False] = after
        # What was compiled for a module without hooks must not serve one with them.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        self._present: tuple[Turn, bool] | None = None
        #: Whether a backward made a graph of its own, whose backward uses modules without telling. So all are there, until a step.
        self._stay = False
        self._hooks: list[Any] = []
        for turn in self._turns:
            self._hook(turn)
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        # These are not the modules', and end with them.
        others = [register_optimizer_step_pre_hook(weakly(self._before_step)), *when_memory_is_short(self._give)]
        weakref.finalize(self, _remove, others).atexit = False
        self._hooks += others

    def restore(self, module: Any = None) -> None:
        """Brings a module back, or all of them: to be read, or changed. It stays until another one begins to run."""
        for turn in self._of(module):
            turn.arrive()
            turn.came_to_run = False

    def evict(self, module: Any = None) -> None:
        """Gives the memory of a module to others, or of all of them, behind the work so far. It comes back when it runs."""
        self._present = None
        for turn in self._of(module):
            turn.leave()

    def _of(self, module: Any) -> list[Turn]:
        found = [turn for turn in self._turns if module is None or turn.module is module]
        if not found:
            raise ValueError(f"this {type(module).__name__} is not among the modules that were passed to offload")
        return found

    def remove(self) -> None:
        """Brings all modules back. They stay on the GPU from now on."""
        _remove(self._hooks)
        self._hooks = []
        self.restore()
        for turn in self._turns:
            turn.forget()
            _members.discard(turn.module)

    def _undo(self) -> None:
        """Modules go back to where they came from."""
        for turn in reversed(self._turns):
            turn.part.restore()
            turn.forget()
            if turn.is_from_host:
                turn.module.to("cpu")

    # ---- hooks -----------------------------------------------------------------------------------

    def _hook(self, turn: Turn) -> None:
        import torch

        module = turn.module

        def before_forward(_module: Any, _args: Any) -> None:
            self._begin(turn, False)

        def after_forward(_module: Any, _args: Any, output: Any) -> None:
            self._watch_backward(turn, output)

        def before_part(_module: Any, _args: Any) -> None:
            # The whole module's hook was before, if that is compiled.
            if not torch.compiler.is_compiling():
                self._begin(turn, False)

        def after_part(_module: Any, _args: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._watch_backward(turn, output)

        def before_state(*_: Any) -> None:
            self.restore(module)

        # What is compiled must not look into them.
        outside = torch.compiler.disable
        self._hooks.append(module.register_forward_pre_hook(outside(before_forward)))
        self._hooks.append(module.register_forward_hook(outside(after_forward)))
        self._hooks.append(module.register_state_dict_pre_hook(before_state))
        self._hooks.append(module.register_load_state_dict_pre_hook(before_state))
        if not hasattr(module, "_orig_mod"):
            # Some are called past their own forward, as by `vae.decode`.
            for child in _parts(torch, module):
                self._hooks.append(child.register_forward_pre_hook(before_part))
                self._hooks.append(child.register_forward_hook(after_part))

    def _begin_backward(self, turn: Turn) -> None:
        import torch

        # As in a backward with `create_graph` only.
        self._stay |= torch.is_grad_enabled()
        self._begin(turn, True)

    def _begin(self, turn: Turn, is_backward: bool) -> None:
        if self._stay:
            self._present = (turn, is_backward)
            self._arrive(*self._turns)
            return
        if self._present == (turn, is_backward):
            turn.arrive()
            return
        if self._present is not None:
            before, was_backward = self._present
            if before is not turn:
                before.next[was_backward] = turn
        self._present = (turn, is_backward)
        after = turn.next.get(is_backward)
        self._leave_all_but(turn, after)
        self._arrive(turn)
        if after is not None and after is not turn and not after.is_there:
            after.part.restore_ahead()

    def _arrive(self, *turns: Turn) -> None:
        for turn in turns:
            try:
                turn.arrive()
            except OutOfMemoryError:
                # What is there early, or was needed before, gives way.
                self._leave_all_but(*turns)
                turn.arrive()
            turn.came_to_run = turn is self._running()

    def _running(self) -> Turn | None:
        return self._present[0] if self._present else None

    def _leave_all_but(self, *stay: Turn | None) -> None:
        for turn in self._turns:
            if turn not in stay:
                turn.leave()

    def _watch_backward(self, turn: Turn, output: Any) -> None:
        import torch
        from torch.utils._pytree import tree_leaves

        if not torch.is_grad_enabled():
            return
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if leaves:
            torch.autograd.graph.register_multi_grad_hook(leaves, lambda _: self._begin_backward(turn), mode="any")

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parameters = {id(one) for group in optimizer.param_groups for one in group["params"]}
        turns = [turn for turn in self._turns if not turn.parameters.isdisjoint(parameters)]

        def get_ready() -> None:
            self._present, self._stay = None, False
            self._arrive(*turns)

        return before_update(get_ready, args, kwargs) if turns else None

    def _give(self) -> bool:
        """Memory is short: what is there early waits until its turn."""
        idle = [turn for turn in self._turns if turn is not self._running()]
        early = [turn for turn in idle if turn.part.has_come or (turn.is_there and turn.came_to_run)]
        for turn in early:
            turn.leave()
        return bool(early)


#: The modules that take turns already.
_members: weakref.WeakSet[Any] = weakref.WeakSet()


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _parts(torch: Any, module: Any) -> Iterator[Any]:
    """The children of a module that can be called: a list is not, and its children are."""
    for child in module.children():
        if type(child).forward is torch.nn.Module.forward:
            yield from _parts(torch, child)
        else:
            yield child


def _check(torch: Any, module: Any) -> None:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"an optimizer, a module, or a list of modules is expected, not {type(module).__name__}")
    if module in _members:
        raise ValueError(f"this {type(module).__name__} is offloaded already")
    for name, tensor in _named(module):
        if is_traceable_wrapper_subclass(tensor) or type(tensor).__name__ == "FlatParameter":
            raise ValueError(
                f"{name} of {type(module).__name__} is a {type(tensor).__name__}, whose memory FSDP or another library moves itself. "
                "Offload the optimizer of such a module; for its parameters, use what that library has (CPUOffloadPolicy)"
            )


def _named(module: Any) -> Iterable[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _shared(modules: Sequence[Any]) -> set[int]:
    """The memory that two of the modules have. It belongs to no turn."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in modules:
        own = {tensor.untyped_storage()._cdata for _, tensor in _named(module)}
        shared |= own & seen
        seen |= own
    return shared


def _bring(module: Any, part: Part, device: Any, shared: set[int]) -> None:
    """Moves a module's memory under its tag."""
    for name, tensor in _named(module):
        number = tensor.untyped_storage()._cdata
        if is_taken(number) and number not in shared:
            raise ValueError(
                f"{name} of {type(module).__name__} is another offloaded module's, too: pass both in one list, and it stays on the GPU"
            )
        if number in shared and device is not None and not tensor.is_cuda:
            tensor.data = tensor.data.to(device)
            shared.add(tensor.untyped_storage()._cdata)
    there = storages(tensor for _, tensor in _named(module))
    if device is not None:
        with under(part.tag):
            module.to(device)
    now = storages(tensor for _, tensor in _named(module))
    if not now:
        raise ValueError(f"{type(module).__name__} has nothing on a GPU: pass device='cuda', and it goes there when it runs")
    take([(storage, part) for number, storage in there.items() if number not in shared])
    note(storage for number, storage in now.items() if number not in there)
