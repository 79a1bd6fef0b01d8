"""Which module runs, in which phase; what parameters, gradients and the optimizer hold; and when enough was seen."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
import warnings
import weakref
from typing import Any

import torch

from . import allocator, kernels, libraries, ranks, values, weights
from .recording import Recording
from .settings import ANSWER, FOLDER, PROCESS, REAL, STEPS, leave, refuse

RECORDING = Recording()

#: Whether autograd's engine runs.
BACKWARD = 0


class Modules(threading.local):
    """The modules whose forward runs in this thread, outermost first, by name."""

    def __init__(self) -> None:
        self.names: list[str] = []


RUNNING = Modules()
NAMES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
ROOTS: weakref.WeakSet[Any] = weakref.WeakSet()


def begin() -> None:
    """Watches PyTorch, which has just been imported."""
    if not FOLDER:
        return
    if not REAL:
        # PyTorch counts real cards by NVML, past the CUDA runtime.
        torch.cuda._device_count_nvml = lambda: -1
    if not torch.backends.cuda.is_built():
        refuse("this PyTorch is built without CUDA; install its CUDA build, which needs no GPU to be installed")
    if not torch.cuda.is_available():
        refuse("PyTorch finds no card: libmillpond_card.so does not reach it; is the program's Python linked statically?")
    RECORDING.begin()
    if not REAL:
        with warnings.catch_warnings():
            # PyTorch warns of operations that are put in the place of its own.
            warnings.simplefilter("ignore")
            kernels.begin(RECORDING)
            values.begin()
            libraries.begin()
            allocator.begin(torch)
    ranks.begin()
    watch_modules()
    watch_backward()
    watch_optimizers()
    run_eagerly()
    if not REAL:
        weights.begin()
    torch.backends.cudnn.benchmark = False
    atexit.register(at_the_end)
    hook = sys.excepthook

    def failed(kind: Any, error: Any, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            ANSWER.say_first("ended by Ctrl-C: what came before is predicted")
            finish("ended")
        hook(kind, error, trace)
        # A library may not know the stand-in for a whole number.
        hint = "; a whole number of item() has no value: say --item VALUE" if "Unknown" in str(error) and not REAL else ""
        ANSWER.figures["failed"] = f"{kind.__name__}: {str(error).strip()}{hint}"

    sys.excepthook = failed


def finish(ended: str) -> None:
    """Writes what was seen, and ends the process."""
    write(ended)
    leave(0)


#: Optimizers that the program built.
BUILT = 0


def write(ended: str) -> None:
    """Writes what was seen. Another Ctrl-C does not cut that off."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if BUILT and "steps" not in ANSWER.figures:
        ANSWER.say_first(
            "no optimizer took a step: its state, and what a step allocates, are not in what follows. The program ended before"
        )
    libraries.say()
    RECORDING.write()
    ANSWER.write(ended)


def at_the_end() -> None:
    if os.getpid() != PROCESS:
        return
    failed = ANSWER.figures.get("failed")
    if failed:
        ANSWER.write("failed", failed)
    else:
        write("ended")


# Modules


def name_all(root: Any) -> None:
    """Names the modules of one that was called from outside of any."""
    for name, module in root.named_modules():
        NAMES.setdefault(module, name or type(root).__name__)
    ROOTS.add(root)


def note_parameters(root: Any) -> None:
    tensors = [(tensor, "parameter", name.rpartition(".")[0]) for name, tensor in root.named_parameters()]
    tensors += [(tensor, "parameter", name.rpartition(".")[0]) for name, tensor in root.named_buffers()]
    RECORDING.note(tensors)


def phase() -> str:
    return "recompute" if BACKWARD else "forward"


def watch_modules() -> None:
    from torch.nn.modules import module as modules

    def enter(module: Any, _args: Any) -> None:
        if not RUNNING.names and not BACKWARD:
            if module not in ROOTS:
                name_all(module)
                note_parameters(module)
        RUNNING.names.append(NAMES.get(module) or type(module).__name__)
        RECORDING.set(phase(), RUNNING.names[-1])

    def leave_module(module: Any, _args: Any, output: Any) -> None:
        name = RUNNING.names.pop() if RUNNING.names else ""
        watch_gradient_of(output, name)
        outer = RUNNING.names[-1] if RUNNING.names else ""
        RECORDING.set("backward" if BACKWARD and not outer else phase(), outer)

    modules.register_module_forward_pre_hook(enter)
    modules.register_module_forward_hook(leave_module, always_call=True)


def watch_gradient_of(output: Any, name: str) -> None:
    """When autograd comes to this output of a module, the module's backward begins."""
    outputs = output if isinstance(output, (tuple, list)) else [output]
    for tensor in outputs:
        node = getattr(tensor, "grad_fn", None) if isinstance(tensor, torch.Tensor) else None
        if node is not None:
            node.register_prehook(lambda _gradients, name=name: RECORDING.set("backward", name))


# Phases


#: Backwards for a step, after which a program is taken for one with an optimizer of its own.
MOST_BACKWARDS = 32


def watch_backward() -> None:
    engine = torch.autograd.graph._engine_run_backward
    times = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        global BACKWARD
        nonlocal times
        times += 1
        if times > STEPS * MOST_BACKWARDS and "steps" not in ANSWER.figures:
            ANSWER.say_first(f"no optimizer of PyTorch's took a step: ended after {times - 1} backwards")
            finish("ended")
        before = RECORDING.phase, RECORDING.module
        BACKWARD += 1
        RECORDING.set("backward", "")
        try:
            return engine(*args, **kwargs)
        finally:
            BACKWARD -= 1
            RECORDING.set(*before)

    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = run


def watch_optimizers() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        tensors = []
        for parameter in parameters(optimizer):
            name = PARAMETERS.get(parameter) or name_of(parameter)
            tensors.append((parameter, "parameter", name))
            if parameter.grad is not None:
                tensors.append((parameter.grad, "gradient", name))
        RECORDING.note(tensors)
        RECORDING.set("optimizer", type(optimizer).__name__)

    def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        tensors = []
        for parameter, state in optimizer.state.items():
            name = PARAMETERS.get(parameter, "") if isinstance(parameter, torch.Tensor) else ""
            values = state.values() if isinstance(state, dict) else [state]
            tensors += [(value, "optimizer state", name) for value in values if isinstance(value, torch.Tensor)]
        RECORDING.note(tensors)
        RECORDING.set("forward", "")
        steps[optimizer] = steps.get(optimizer, 0) + 1
        ANSWER.figures["steps"] = max(steps.values())
        if max(steps.values()) >= STEPS:
            finish("steps")

    build = torch.optim.Optimizer.__init__

    @functools.wraps(build)
    def built(*args: Any, **kwargs: Any) -> None:
        global BUILT
        BUILT += 1
        build(*args, **kwargs)

    torch.optim.Optimizer.__init__ = built
    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class ByIdentity:
    """A name for each parameter; tensors compare by value, so they are no keys of a usual dictionary."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[Any, str]] = {}

    def get(self, parameter: Any, default: str = "") -> str:
        found = self.names.get(id(parameter))
        return found[1] if found and found[0]() is parameter else default

    def set(self, parameter: Any, name: str) -> None:
        self.names[id(parameter)] = (weakref.ref(parameter), name)


PARAMETERS = ByIdentity()


def name_of(parameter: Any) -> str:
    """The module of a parameter: those of all modules that were called are looked up at once."""
    for root in list(ROOTS):
        for name, other in root.named_parameters():
            PARAMETERS.set(other, name.rpartition(".")[0])
    return PARAMETERS.get(parameter)


# What PyTorch does otherwise


def run_eagerly() -> None:
    """Compiled code is predicted as the code that it is compiled from."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        ANSWER.say_first(
            "torch.compile is used, and the code is predicted as it is written: compiled code mostly holds less. "
            "A network of gated layers requested 21 % less. The figures are those without it"
        )
        return model if model is not None else lambda model: model

    torch.compile = compile
    torch.nn.Module.compile = lambda self, *args, **kwargs: compile(self)
