"""What is offloaded gives the losses of what is not, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

COMMON = """
import os
os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", RANK="0", WORLD_SIZE="1")
import millpond, millpond.torch as mt
mt.enable()
import torch
from torch import nn
torch.use_deterministic_algorithms(True)
import millpond._torch_offload as ours
ours._LEAST_BYTES, ours._LEAST_STATE = 8 << 20, 0
WIDTH = 1024


def net():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6))).cuda()


def losses(step, count=6):
    torch.manual_seed(2)
    found = [step(torch.randn(512, WIDTH, device="cuda")).detach() for _ in range(count)]
    return [float(one) for one in found]


def evicted():
    pool = millpond.pool(0)
    parts = [pool.tagged(tag) for tag in pool.tags]
    # Those of an optimizer that is gone have nothing.
    return [part.is_evicted for part in parts if part.stats().blocks.current > 0]


def train(make, wrap=lambda net: net, offloads=False, compiled=lambda net: net):
    model = wrap(net())
    optimizer = make(model.parameters())
    offloaded = mt.offload(optimizer) if offloads else None
    run = compiled(model)

    def step(x):
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    found = losses(step)
    if offloads:
        assert evicted() and all(evicted()), evicted()
        offloaded.remove()
        assert not any(evicted())
    return found


def both(*args, **kwargs):
    plain, ours = (train(*args, offloads=which, **kwargs) for which in (False, True))
    assert plain == ours and len(set(plain)) == len(plain), (plain, ours)
"""

PROGRAMS = {
    "optimizers": """
for make in (
    lambda p: torch.optim.AdamW(p, lr=1e-3), lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=1e-3, capturable=True),
):
    both(make)
""",
    "compiled": """
both(torch.optim.AdamW, compiled=torch.compile)
both(torch.optim.AdamW, compiled=lambda net: torch.compile(net, mode="reduce-overhead"))
""",
    "ddp": """
import torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
both(torch.optim.AdamW, wrap=lambda net: nn.parallel.DistributedDataParallel(net, device_ids=[0]))
dist.destroy_process_group()
""",
    "fsdp": """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
torch.cuda.set_device(0)
dist.init_process_group("nccl")


def shard(net):
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


both(torch.optim.AdamW, wrap=shard)
try:
    mt.offload(shard(net()))
except ValueError as error:
    assert "DTensor" in str(error)
else:
    raise AssertionError
dist.destroy_process_group()
""",
    "scaler": """
def train(offloads):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30)
    if offloads:
        mt.offload(optimizer)

    def step(x):
        with torch.autocast("cuda", torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)      # leaves some steps out
        scaler.update()
        optimizer.zero_grad()
        return loss

    return losses(step, 24)


plain, ours = train(False), train(True)
assert plain == ours and 1 < len(set(plain)) , (plain, ours)
""",
    "closure, accumulated, resumed": """
import copy


def train(offloads, state=None):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    if offloads:
        mt.offload(optimizer, tag=f"of {state is None}")

    def step(x):
        def closure():
            optimizer.zero_grad()
            for part in x.split(128):
                loss = model(part).square().mean()
                loss.backward()
            return loss
        return optimizer.step(closure)

    return losses(step), optimizer.state_dict()


plain, state = train(False)
ours, same = train(True)
assert plain == ours
for a, b in zip(state["state"].values(), same["state"].values()):
    assert all(torch.equal(a[name], b[name]) for name in a)
assert train(False, state)[0] == train(True, same)[0]
""",
    "modules": """
def train(offloads):
    parts = [net(), net(), net()]
    optimizer = torch.optim.AdamW([one for part in parts for one in part.parameters()], lr=1e-4)
    if offloads:
        offloaded = mt.offload(parts)

    def step(x):
        for part in parts:
            x = part(x)
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    found = losses(step)
    with torch.no_grad():
        x = torch.ones(64, WIDTH, device="cuda")
        for _ in range(3):
            for part in parts:
                x = part(x)
        if offloads:
            assert any(evicted())
        found.append(float(x.double().sum()))
        compiled = torch.compile(parts[0])
        x = torch.ones(64, WIDTH, device="cuda")
        parts[2](x)
        found.append(torch.allclose(compiled(x), parts[0](x), atol=1e-5))
    weights = [one.cpu() for part in parts for one in part.state_dict().values()]
    if offloads:
        offloaded.remove()
    return found, weights


(plain, weights), (ours, same) = train(False), train(True)
assert plain == ours, (plain, ours)
assert all(torch.equal(a, b) for a, b in zip(weights, same))
""",
    "modules from the CPU": """
plain = [net() for _ in range(3)]
ours = [net().cpu() for _ in range(3)]
offloaded = mt.offload(ours, device="cuda")
x = torch.randn(512, WIDTH, device="cuda")
with torch.no_grad():
    for _ in range(4):
        for a, b in zip(plain, ours):
            assert torch.equal(a(x), b(x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert torch.equal(plain[1](x), ours[1](x))
    assert torch.equal(plain[1](x), ours[1](x))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_losses_are_the_same(name: str) -> None:
    done = subprocess.run([sys.executable, "-c", COMMON + PROGRAMS[name]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SCRIPT = """
import torch
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(float(loss))
import sys
if "millpond" in sys.modules:
    import millpond
    pool = millpond.pool(0)
    assert not sys.argv[1:] or pool.tags == ["optimizer"] and pool.tagged("optimizer").is_evicted
    # Pages are powers of two, from 8 MiB on.
    assert not sys.argv[1:] or pool.stats().reserved.current % (8 << 20) == 0
"""


def test_a_script_that_nobody_changed_is_offloaded() -> None:
    run = [sys.executable, "-m", "millpond", "run"]
    script = [sys.executable, "-c", SCRIPT]
    commands = [script, [*run, *script], [*run, "--offload", "optimizer", *script, "is offloaded"]]
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = [subprocess.run(each, env=environment, capture_output=True, text=True, check=False) for each in commands]
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    assert done[0].stdout == done[1].stdout == done[2].stdout
