"""Optimizers whose state is on the GPU around their steps only: the CPU as a device, and classes that stand for PyTorch's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, sys, types, weakref
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
BYTES = 3 << 20


class Storage:
    device = types.SimpleNamespace(index=0)

    def __init__(self, bytes):
        self.bytes, self.ptr = bytes, alloc(bytes, 0, stream.handle)
        assert self.ptr
        self._cdata = id(self)

    def nbytes(self):
        return self.bytes

    def resizable(self):
        return True

    def resize_(self, bytes):
        assert bytes == self.bytes
        to = alloc(bytes, 0, stream.handle)
        assert to
        stream.synchronize()
        ctypes.memmove(to, self.ptr, bytes)
        self.__del__()
        self.ptr = to

    def __del__(self):
        free(self.ptr, self.bytes, 0, stream.handle)


class Tensor:
    is_cuda = True

    def __init__(self, bytes):
        self.storage = Storage(bytes)

    def untyped_storage(self):
        return self.storage

    def fill(self, value):
        stream.synchronize()
        ctypes.memset(self.storage.ptr, value, self.storage.bytes)

    def first(self):
        stream.synchronize()
        return ctypes.string_at(self.storage.ptr, 1)[0]

    def is_all(self, value):
        stream.synchronize()
        return ctypes.string_at(self.storage.ptr, self.storage.bytes) == bytes([value]) * self.storage.bytes


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook
        hooks.append(hook)

    def remove(self):
        self.hooks.remove(self.hook)


class Parameter(Tensor):
    requires_grad, grad = True, None

    def __init__(self, bytes=4096):
        super().__init__(bytes)
        self.hooks = []

    def register_post_accumulate_grad_hook(self, hook):
        return Handle(self.hooks, hook)

    def accumulate(self):
        self.grad = Tensor(4096)
        for hook in list(self.hooks):
            hook(self)


every_pre = []


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
        kwargs = {}
        for hooks in (every_pre, self.step_pre):
            for hook in list(hooks):
                args, kwargs = hook(self, args, kwargs) or (args, kwargs)
        self.update(*args[1:])
        for hook in list(self.step_post):
            hook(self, args, kwargs)

    def update(self, closure=None):
        if closure is not None:
            closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    self.state[parameter] = {"step": 0.0, "moment": Tensor(BYTES)}
                    self.state[parameter]["moment"].fill(0)
                moment = self.state[parameter]["moment"]
                moment.fill(moment.first() + 1)

    def state_dict(self):
        for hook in self.state_dict_pre:
            hook(self)
        return dict(self.state)

    def load_state_dict(self, state):
        for hook in self.load_state_dict_pre:
            hook(self, state)
        self.state = state
        for hook in self.load_state_dict_post:
            hook(self)


class StorageWeakRef:
    def __init__(self, storage):
        self.ref = weakref.ref(storage)

    def expired(self):
        return self.ref() is None


def tree_leaves(tree):
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for each in tree for leaf in tree_leaves(each)] if isinstance(tree, list) else [tree]


def module(name, **members):
    sys.modules[name] = types.SimpleNamespace(**members)
    return sys.modules[name]


used = []
view = types.SimpleNamespace(record_stream=used.append)
cuda = types.SimpleNamespace(
    current_stream=lambda *_: types.SimpleNamespace(cuda_stream=stream.handle), synchronize=lambda _: stream.synchronize()
)
module("torch", cuda=cuda, uint8=None, empty=lambda *_, **__: types.SimpleNamespace(set_=lambda _: view))
module("torch.multiprocessing.reductions", StorageWeakRef=StorageWeakRef)
module("torch.utils._pytree", tree_leaves=tree_leaves)
module("torch.optim.optimizer", register_optimizer_step_pre_hook=every_pre.append)
import millpond._torch_offload as ours
ours._LEAST_BYTES, ours._LEAST_STATE = 6 << 20, 1 << 20


def forward_and_backward(parameters, activations):
    kept = [Tensor(BYTES) for _ in range(activations)]
    for at in range(activations):
        kept[at].fill(99)
    for parameter in reversed(parameters):
        if kept:
            kept.pop()
        parameter.accumulate()
    kept.clear()


def held_by(pool):
    return pool.stats().reserved.current


def tags_of(name):
    return [pool.tagged(tag) for tag in pool.tags if tag.split(".")[0] == name]


def come():
    '''Waits for the thread that restores.'''
    for part in offloaded._parts:
        part.comes is None or part.comes.result()


mt._enabled = None
try:
    mt.offload(Optimizer([]))
except millpond.Error as error:
    assert "call millpond.torch.enable()" in str(error)
else:
    raise AssertionError
mt._enabled = "plug-in"
"""

STEPS = """
parameters = [Parameter() for _ in range(8)]
optimizer = Optimizer(parameters)
offloaded = mt.offload(optimizer)
forward_and_backward(parameters, 8)
optimizer.step()
tags = tags_of("optimizer")
assert len(tags) == 4, pool.tags
assert all(tag.is_evicted and held_by(tag) == 0 for tag in tags), "behind the step"
assert [tag.stats().blocks.current for tag in tags] == [2, 2, 2, 2]
held, most = held_by(pool), pool.stats().requested.high
for step in range(2, 6):
    forward_and_backward(parameters, 8)
    come()
    assert all(tag.is_evicted and held_by(tag) > 0 for tag in tags), "they come back before the step"
    optimizer.step()
    assert all(tag.is_evicted and held_by(tag) == 0 for tag in tags)
    assert held_by(pool) == held, "the step needs no more memory than before"
    assert pool.stats().requested.high == most
assert all(state["moment"].is_all(5) for state in optimizer.state_dict().values())
assert not any(tag.is_evicted for tag in tags), "whoever has the state reads it later"
optimizer.step()
assert all(tag.is_evicted for tag in tags)

# A part comes when there is room for it, and no other.
kept = Tensor(most - pool.stats().requested.current - (7 << 20))
parameters[-1].accumulate()
come()
assert [held_by(tag) > 0 for tag in tags] == [True, False, False, False]
del kept
forward_and_backward(parameters, 0)
come()
assert all(held_by(tag) > 0 for tag in tags)
optimizer.step()

# Of several backwards, the last one counts.
for _ in range(2):
    forward_and_backward(parameters, 8)
optimizer.step()
forward_and_backward(parameters, 8)
come()
assert not any(held_by(tag) for tag in tags), "the first of two"
forward_and_backward(parameters, 8)
come()
assert all(held_by(tag) for tag in tags)
optimizer.step()

# The forward and the backward may be in the step.
def closure():
    assert all(tag.is_evicted for tag in tags)
    forward_and_backward(parameters, 8)

optimizer.step(closure)
optimizer.step(closure)
assert all(tag.is_evicted for tag in tags)

# What comes early gives way.
forward_and_backward(parameters, 8)
forward_and_backward(parameters, 8)
come()
assert all(held_by(tag) for tag in tags)
large = Tensor((1 << 30) - (12 << 20))
assert not any(held_by(tag) for tag in tags)
del large
optimizer.step()

plain = Tensor(4096)
blocks = pool.stats().blocks.current
assert sum(tag.stats().blocks.current for tag in tags) == 8, "only the state has the tags"
offloaded.remove()
assert not any(tag.is_evicted for tag in tags)
value = optimizer.state[parameters[0]]["moment"].first()
assert all(state["moment"].is_all(value) for state in optimizer.state.values())
optimizer.step()
assert not any(tag.is_evicted for tag in tags)
assert not parameters[0].hooks and not optimizer.step_pre

# A state that is there already moves, once.
again = mt.offload(optimizer, tag="again")
assert sum(tag.stats().blocks.current for tag in tags_of("again")) == 8
assert all(tag.stats().blocks.current == 0 for tag in tags)
assert all(state["moment"].is_all(value + 1) for state in optimizer.state.values())
other = Optimizer([Parameter() for _ in range(4)])
other.step()
offloaded = mt.offload(other, tag="late")
assert [tag.stats().blocks.current for tag in tags_of("late")] == [2, 2]
assert all(state["moment"].is_all(1) for state in other.state.values())
other.load_state_dict({one: {"moment": Tensor(BYTES)} for one in other.param_groups[0]["params"]})
assert [tag.stats().blocks.current for tag in tags_of("late")] == [2, 2], "that of before is gone"
other.step()
assert all(tag.is_evicted for tag in tags_of("late"))
assert used, "streams that copy are known"
assert millpond.last_error() is None, millpond.last_error()
"""

EVERY = """
mt.offload_optimizers()
mt.offload_optimizers()
assert len(every_pre) == 1
first, second, small = ([Parameter() for _ in range(count)] for count in (8, 4, 1))
optimizers = [Optimizer(each) for each in (first, second, small)]
ours._LEAST_STATE = 4 << 20
for _ in range(3):
    for optimizer, parameters in zip(optimizers, (first, second, small)):
        forward_and_backward(parameters, 8)
        optimizer.step()
assert len(optimizers[0].step_pre) == 1
assert sorted({tag.split(".")[0] for tag in pool.tags}) == ["optimizer", "optimizer-2"], pool.tags
assert all(tag.is_evicted for name in ("optimizer", "optimizer-2") for tag in tags_of(name))
assert optimizers[2].state[small[0]]["moment"].is_all(3), "it is not worth it"
assert millpond.last_error() is None, millpond.last_error()
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_state_is_there_around_the_steps_only() -> None:
    run(STEPS)


def test_each_optimizer_of_a_script_is_offloaded_from_its_first_step() -> None:
    run(EVERY)
