"""Modules and optimizers of PyTorch itself that are offloaded: with a CUDA runtime that does nothing, and a pool of the CPU's memory.

Needs a CUDA build of PyTorch, and no GPU. Where it is missing, these tests are skipped. `MILLPOND_PREDICT_PYTHON` names a Python that
has it, if the tests' own has not; `MILLPOND_CARD_LIBRARY` names the runtime, if it is not in the package.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("MILLPOND_PREDICT_PYTHON", sys.executable)
PACKAGE = Path(str(importlib.util.find_spec("millpond").origin)).parent  # type: ignore[union-attr]
CARD = Path(os.environ.get("MILLPOND_CARD_LIBRARY", PACKAGE / "_run" / "libmillpond_card.so"))


def has_torch() -> bool:
    asked = "import torch, sys; sys.exit(not torch.backends.cuda.is_built())"
    return subprocess.run([PYTHON, "-c", asked], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(not CARD.exists(), reason="the package has no libmillpond_card.so: scripts/run-library builds it"),
    pytest.mark.skipif(not has_torch(), reason="no PyTorch with CUDA: name a Python that has it in MILLPOND_PREDICT_PYTHON"),
]

COMMON = """
import ctypes
import millpond
import millpond.torch as mt
from millpond import _millpond
import torch
from torch import nn

mt.enable(backend="plug-in")
pool = millpond.Pool("host", name="gpu", capacity=CAPACITY)
_millpond.stand_in(0, pool)
import millpond._torch_offload as optimizers
optimizers._LEAST_STATE = 0
MIB = 1 << 20


def net(layers=8):
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(layers)))


def held():
    return [pool.tagged(tag).stats().reserved.current for tag in pool.tags]


def come(offloaded):
    for turn in offloaded._turns:
        turn.part.comes is None or turn.part.comes.result()


def there(offloaded):
    return [turn.is_there for turn in offloaded._turns]


def fill(tensor, value):
    pool.synchronize()
    ctypes.memset(tensor.data_ptr(), value, tensor.nbytes)


def is_filled(tensor, value):
    pool.synchronize()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) == bytes([value]) * tensor.nbytes


def refused(error, text, *args, **kwargs):
    try:
        mt.offload(*args, **kwargs)
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError(text)


x = torch.zeros(64, 1024, device="cuda")
"""

IN_TURN = """
modules = [net(), net(), net()]
offloaded = mt.offload(modules, device="cuda")
assert pool.tags == ["model.1", "model.2", "model.3"] and held() == [0, 0, 0]
assert pool.stats().requested.current < MIB, "all is under the tags"
addresses = [one.data_ptr() for module in modules for one in module.parameters()]
with torch.no_grad():
    for number in range(6):
        modules[number % 3](x)
        come(offloaded)
        # It is there, the next one has begun to come, and the last one has left.
        is_held = [bytes > 0 for bytes in held()]
        assert is_held == [at != (number + 2) % 3 for at in range(3)], (number, is_held)
        assert there(offloaded) == [at == number % 3 for at in range(3)]
        if number < 3:
            fill(modules[number][0].weight, number + 1)
    for number, module in enumerate(modules):
        module(x)
        assert is_filled(module[0].weight, number + 1)
        assert module[0](x).shape == x.shape, "a part of it may be called"
assert addresses == [one.data_ptr() for module in modules for one in module.parameters()]
offloaded.remove()
assert there(offloaded) == [True] * 3 and all(held())
assert not modules[0]._forward_pre_hooks and not modules[0][0]._forward_pre_hooks
mt.offload(modules[0], tag="again")
"""

MEMORY_IS_SHORT = """
modules = [net(), net(), net()]
offloaded = mt.offload(modules, device="cuda")
with torch.no_grad():
    for _ in range(2):
        for module in modules:
            module(x)
    modules[0](x)
    come(offloaded)
    assert [bytes > 0 for bytes in held()] == [True, True, False]
    large = torch.empty(CAPACITY - 92 * MIB, dtype=torch.uint8, device="cuda")
    assert [bytes > 0 for bytes in held()] == [True, False, False], "what came early gives way"
    modules[1](x)
    assert there(offloaded) == [False, True, False]
    del large
    offloaded.restore(modules[2])
    try:
        torch.empty(CAPACITY - 92 * MIB, dtype=torch.uint8, device="cuda")
    except RuntimeError:
        assert there(offloaded)[1:] == [True, True], "somebody reads it"
    else:
        raise AssertionError
"""

TRAINED = """
modules = [net(2).cuda() for _ in range(3)]
parameters = [one for module in modules for one in module.parameters()]
same = modules[0][0].weight.view(-1)
optimizer = torch.optim.AdamW(parameters)
offloaded = mt.offload(modules)
of_state = mt.offload(optimizer)
assert same.data_ptr() == modules[0][0].weight.data_ptr(), "views move along"
seen = []
for number, module in enumerate(modules):
    module.register_full_backward_hook(lambda *_, number=number: seen.append((number, there(offloaded)[number])))
for _ in range(3):
    seen.clear()
    y = x.clone().requires_grad_()
    for module in modules:
        y = module(y)
    y.sum().backward()
    assert seen == [(2, True), (1, True), (0, True)], seen
    assert all(one.grad is not None for one in parameters)
    optimizer.step()
    assert there(offloaded) == [True] * 3, "the step needs all of them"
    optimizer.zero_grad()
modules[0](x)
assert there(offloaded) == [True, True, False], "the next one stays, as it is there"
assert all(pool.tagged(tag).is_evicted for tag in pool.tags if tag.startswith("optimizer"))
modules[2].state_dict()
assert there(offloaded) == [True] * 3
modules[1](x), modules[2](x), modules[0](x)
assert there(offloaded)[2] is False
offloaded.restore(modules[2])
assert there(offloaded)[2]
offloaded.evict(modules[2])
offloaded.evict()
assert there(offloaded) == [False] * 3 and held()[:3] == [0] * 3
modules[2](x)
assert there(offloaded)[2]
"""

REFUSED = """
module = net().cuda()
mt.offload(module)
refused(ValueError, "is offloaded already", module)
refused(TypeError, "an optimizer, a module, or a list of modules is expected, not int", 3)
refused(ValueError, "has nothing on a GPU: pass device='cuda'", net(1))
refused(TypeError, "device is for modules", torch.optim.SGD(net(1).parameters()), device="cuda")
tied = net(1).cuda()
tied[0].weight = module[0].weight
refused(ValueError, "0.weight of Sequential is another offloaded module's, too", tied, tag="tied")
import os
import torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29523", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sharded = fully_shard(net(1).cuda(), mesh=init_device_mesh("cuda", (1,)))
refused(ValueError, "0.weight of FSDPSequential is a DTensor", sharded, tag="sharded")
dist.destroy_process_group()
"""

SHARED = """
first, second = net(2), net(2)
second[0].weight = first[0].weight
offloaded = mt.offload([first, second], device="cuda")
assert pool.stats().requested.current == 4 * MIB + x.nbytes, "what two have stays"
assert [pool.tagged(tag).stats().requested.current for tag in pool.tags] == [4 * MIB] * 2
assert first[0].weight is second[0].weight and first[0].weight.is_cuda
with torch.no_grad():
    for _ in range(3):
        first(x), second(x)
batch = nn.BatchNorm1d(1024).cuda()
mt.offload(batch, tag="buffers")
found = pool.tagged("buffers").stats().blocks.current, [one.device for one in batch.buffers()]
assert found[0] == len([*batch.parameters(), *batch.buffers()]), found
"""

COMPILED = """
module, other = net(2).cuda(), net(2).cuda()
before = torch.compile(module, backend="eager")
offloaded = mt.offload([before, other])
late = torch.compile(other, backend="eager")
with torch.no_grad():
    for _ in range(2):
        before(x)
        come(offloaded)
        assert there(offloaded)[0]
        late(x)
        come(offloaded)
        assert there(offloaded)[1]
"""

RESUMED = """
from torch.optim.lr_scheduler import StepLR
mt.offload_optimizers()


def train(model, optimizer, steps):
    schedule = StepLR(optimizer, 1)
    for _ in range(steps):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


model = net(2).cuda()
optimizer = torch.optim.AdamW(model.parameters())
train(model, optimizer, 2)
[hook] = optimizer._optimizer_step_pre_hooks.values()
assert pool.tagged("optimizer").is_evicted
state = optimizer.state_dict()
assert not pool.tagged("optimizer").is_evicted
import copy
resumed = torch.optim.AdamW(model.parameters(), fused=True)
resumed.load_state_dict(copy.deepcopy(state))
blocks = pool.stats().blocks.current
train(model, resumed, 1)
assert pool.tags == ["optimizer", "optimizer-2"] and pool.tagged("optimizer-2").is_evicted
assert pool.tagged("optimizer-2").stats().requested.current >= 16 * MIB
closed = torch.optim.SGD(model.parameters(), momentum=0.9)


def closure():
    assert "optimizer-3" not in pool.tags or pool.tagged("optimizer-3").is_evicted
    loss = model(x).sum()
    loss.backward()
    return loss


for _ in range(3):
    assert closed.step(closure).shape == ()
assert pool.tagged("optimizer-3").is_evicted
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)
lbfgs.step(closure)
lbfgs.step(closure)
"""

TRIED_AGAIN = """
module = net(1)
refused(ValueError, "has nothing on a GPU: pass device='cuda'", module)
offloaded = mt.offload(module, device="cuda")
offloaded.remove()

# The third one does not fit.
modules = [net(2), net(8), net(64)]
before = pool.stats().requested.current
refused(RuntimeError, "", modules, device="cuda", tag="too large")
assert not any(one.is_cuda for module in modules for one in module.parameters())
assert pool.stats().requested.current == before and not any(pool.tagged(tag).is_evicted for tag in pool.tags)
mt.offload(modules[:2], device="cuda", tag="too large")
assert len(mt.offload([net(1), module, module], device="cuda")._turns) == 2
"""

WITH_CLOSURE = """
modules = [net(2).cuda() for _ in range(3)]
optimizer = torch.optim.AdamW([one for module in modules for one in module.parameters()])
offloaded = mt.offload(modules)
import torch.optim.adam as adam
update, seen = adam.adam, []
adam.adam = lambda *args, **kwargs: seen.append(there(offloaded)) or update(*args, **kwargs)


def closure():
    y = x
    for module in modules:
        y = module(y)
    y = y.sum()
    y.backward()
    assert there(offloaded).count(True) == 1 or not seen
    return y


for _ in range(3):
    optimizer.step(closure)
    optimizer.step(closure=closure)
assert seen == [[True] * 3] * 6, seen
"""

PAST_FORWARD = """
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(net(2))

    def decode(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    forward = decode


modules = [Coder().cuda() for _ in range(4)]
offloaded = mt.offload(modules)
seen = []
for number, module in enumerate(modules):
    for block in module.blocks:
        block.register_full_backward_hook(lambda *_, number=number: seen.append(there(offloaded)[number]))
for _ in range(2):
    y = x.clone().requires_grad_()
    for number, module in enumerate(modules):
        y = module.decode(y)
        assert there(offloaded)[number]
    y.sum().backward()
assert seen == [True] * 16, seen
"""

TWICE = """
modules = [net(2).cuda() for _ in range(4)]
parameters = [one for module in modules for one in module.parameters()]
optimizer = torch.optim.SGD(parameters)
offloaded = mt.offload(modules)
seen = []
for one in parameters:
    one.register_post_accumulate_grad_hook(lambda _: seen.append(there(offloaded)))


def through(y):
    for module in modules:
        y = module(y)
    return y


for _ in range(2):
    y = x.clone().requires_grad_()
    [gradient] = torch.autograd.grad(through(y).pow(2).sum(), y, create_graph=True)
    (gradient.sum() + through(x).sum()).backward()
    assert len(seen) == len(parameters) and all(map(all, seen)), "the second backward tells of no module"
    optimizer.step()
    seen.clear()
    with torch.no_grad():
        through(x), through(x)
    assert not all(there(offloaded)), "they take turns again"
"""

LET_GO_OF = """
import gc, weakref
from torch.optim.optimizer import _global_optimizer_pre_hooks


def blocks():
    gc.collect()
    return pool.stats().blocks.current + sum(pool.tagged(tag).stats().blocks.current for tag in pool.tags)


def trained(modules):
    optimizer = torch.optim.AdamW([one for module in modules for one in module.parameters()])
    y = x
    for module in modules:
        y = module(y)
    y.sum().backward()
    optimizer.step()
    return optimizer


trained([net(1).cuda()])
before, hooks = blocks(), len(_global_optimizer_pre_hooks)
for _ in range(2):
    model = net(2).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    offloaded = mt.offload(optimizer)
    model(x).sum().backward()
    optimizer.step()
    gone = [weakref.ref(one) for one in (model, optimizer, offloaded)]
    del model, optimizer, offloaded
    assert blocks() == before and not any(one() for one in gone)
    modules = [net(1).cuda(), net(1).cuda()]
    offloaded = mt.offload(modules)
    optimizer = trained(modules)
    gone = [weakref.ref(one) for one in (*modules, optimizer, offloaded)]
    del modules, optimizer, offloaded
    assert blocks() == before and not any(one() for one in gone)
assert len(_global_optimizer_pre_hooks) == hooks
assert set(pool.tags) == {"optimizer", "model.1", "model.2"}, "a tag that is free is used again"
"""

SEVERAL_CALLS = """
first, second = net(1).cuda(), net(1).cuda()
of_first, of_second = mt.offload(first), mt.offload(second)
assert pool.tags == ["model", "model-2"]
first(x), second(x)
of_second.evict()
first(x)
assert not pool.tagged("model").is_evicted and pool.tagged("model-2").is_evicted
with mt.tag("mine"):
    kept = torch.zeros(1024, device="cuda")
for tag in ("mine", "model", "model-2"):
    refused(ValueError, f"there is memory of others under the tag '{tag}'", net(1), device="cuda", tag=tag)
optimizers = [torch.optim.AdamW(one.parameters()) for one in (first, second)]
mt.offload(optimizers[0], tag="state")
refused(ValueError, "there is memory of others under the tag 'state'", optimizers[1], tag="state")
# That of an optimizer that is gone is free.
mt.offload_optimizers()
three = [torch.optim.AdamW(net(1).cuda().parameters()) for _ in range(3)]
for number in (0, 1, 0):
    for group in three[number].param_groups:
        for one in group["params"]:
            (one * 1.0).sum().backward()
    three[number].step()
    if number == 1:
        import gc
        three[0] = three.pop()
        gc.collect()
assert [tag for tag in pool.tags if tag.startswith("optimizer")] == ["optimizer", "optimizer-2"]
assert pool.tagged("optimizer-2").stats().blocks.current == pool.tagged("optimizer").stats().blocks.current > 0
"""

PROGRAMS = {
    "modules run in turn": (IN_TURN, 256),
    "memory is short": (MEMORY_IS_SHORT, 160),
    "modules are trained": (TRAINED, 1024),
    "what cannot be offloaded": (REFUSED, 1024),
    "an offload that failed is tried again": (TRIED_AGAIN, 160),
    "a step with a closure has all modules there": (WITH_CLOSURE, 1024),
    "modules that are called past their forward": (PAST_FORWARD, 1024),
    "a backward of a backward": (TWICE, 1024),
    "what is let go of is freed": (LET_GO_OF, 1024),
    "several calls have tags of their own": (SEVERAL_CALLS, 1024),
    "memory that is shared": (SHARED, 1024),
    "compiled modules": (COMPILED, 1024),
    "optimizers that are resumed, or have a closure": (RESUMED, 1024),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_offloaded(name: str) -> None:
    program, mib = PROGRAMS[name]
    environment = {
        **os.environ,
        "LD_PRELOAD": str(CARD),
        "MILLPOND_CARD": "NVIDIA H100 80GB HBM3|85899345920|9|0|132|1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    code = COMMON.replace("CAPACITY)", f"{mib << 20})") + f"CAPACITY = {mib << 20}\n" + program
    done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
