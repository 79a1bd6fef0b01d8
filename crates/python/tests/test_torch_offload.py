"""Optimizers whose state is on the GPU around their steps only: the CPU as a device, and classes that stand for PyTorch's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, sys, types
import millpond
import millpond.torch as mt
from millpond import _millpond

pool = millpond.Pool("host", name="gpu", capacity=1 << 30)
_millpond.stand_in(0, pool)
pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
hooks = dict(_millpond.torch_hooks()[1])
alloc = ctypes.CFUNCTYPE(pointer, size, number, pointer)(hooks["alloc"])
free = ctypes.CFUNCTYPE(None, pointer, size, number, pointer)(hooks["free"])
stream = pool.create_stream()
sys.modules["torch"] = types.SimpleNamespace(
    cuda=types.SimpleNamespace(current_stream=lambda _: types.SimpleNamespace(cuda_stream=stream.handle))
)
BYTES = 3 << 20


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self):
        self.hooks.remove(self.hook)


class Parameter:
    requires_grad, grad = True, None

    def __init__(self):
        self.hooks = []

    def register_post_accumulate_grad_hook(self, hook):
        return Handle(self.hooks, hook)

    def accumulate(self):
        self.grad = object()
        for hook in self.hooks:
            hook(self)


class Optimizer:
    '''As torch.optim.Optimizer: its hooks, and a state for each parameter that has a gradient.'''

    def __init__(self, parameters):
        self.param_groups, self.state = [{"params": parameters}], {}
        for name in ("step_pre", "step_post", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post"):
            hooks = []
            setattr(self, name, hooks)
            setattr(self, f"register_{name}_hook", lambda hook, hooks=hooks: Handle(hooks, hook))

    def step(self, closure=None):
        args = (self,) if closure is None else (self, closure)
        for hook in self.step_pre:
            hook(self, args, {})
        stream.synchronize()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.state[parameter] = at = alloc(BYTES, 0, stream.handle)
                    ctypes.memset(at, 0, BYTES)
                at = self.state[parameter]
                ctypes.memset(at, ctypes.string_at(at, 1)[0] + 1, BYTES)
        for hook in self.step_post:
            hook(self, args, {})

    def state_dict(self):
        for hook in self.state_dict_pre:
            hook(self)
        return dict(self.state)


def state_is(value):
    stream.synchronize()
    for at in optimizer.state.values():
        assert ctypes.string_at(at, BYTES) == bytes([value]) * BYTES


parameters = [Parameter() for _ in range(8)]
optimizer = Optimizer(parameters)
try:
    mt.offload(optimizer)
except millpond.Error as error:
    assert "call millpond.torch.enable()" in str(error)
else:
    raise AssertionError
mt._enabled = "plug-in"
offloaded = mt.offload(optimizer)


def forward_and_backward(activations):
    ats = [alloc(BYTES, 0, stream.handle) for _ in range(activations)]
    stream.synchronize()
    for at in ats:
        ctypes.memset(at, 99, BYTES)
    for parameter in reversed(parameters):
        if ats:
            free(ats.pop(), BYTES, 0, stream.handle)
        parameter.accumulate()
    assert not ats


held_by = lambda pool: pool.stats().reserved.current
forward_and_backward(8)
optimizer.step()
tag = pool.tagged("optimizer")
assert tag.is_evicted and held_by(tag) == 0, "behind the step"
assert tag.stats().blocks.current == 8
held = held_by(pool)
for step in range(2, 6):
    forward_and_backward(8)
    assert tag.is_evicted and held_by(tag) > 0, "it comes back before the step"
    optimizer.step()
    assert tag.is_evicted and held_by(tag) == 0
    assert held_by(pool) == held, "the step needs no more memory than before"
optimizer.state_dict()
state_is(5)
assert not tag.is_evicted, "whoever has the state reads it later"
optimizer.step()
assert tag.is_evicted
plain = alloc(BYTES, 0, None)
assert pool.stats().blocks.current == 1, "only the optimizer's state has the tag"
try:
    optimizer.step(lambda: None)
except ValueError as error:
    assert "closure" in str(error)
else:
    raise AssertionError
offloaded.remove()
state_is(6)
optimizer.step()
assert not tag.is_evicted
state_is(7)
assert millpond.last_error() is None, millpond.last_error()
"""


def test_the_state_is_there_around_the_steps_only() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
