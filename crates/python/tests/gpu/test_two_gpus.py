"""PyTorch with millpond as its allocator, on two GPUs of one process."""

from __future__ import annotations

from typing import Any

import millpond
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _enabled() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two GPUs")
    millpond.torch.enable()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    for device in range(2):
        torch.cuda.synchronize(device)
        millpond.pool(device).check()


def other(device: str) -> str:
    return {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}[device]


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_contiguous_copies(device: str) -> None:
    for rows in (1, 1000, 5000):
        here = torch.randn(rows, 1000, device=device)
        assert torch.equal(here.to(other(device)).cpu(), here.cpu())


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_strided_copies(device: str) -> None:
    here = torch.randn(3000, 2000, device=device)
    there = torch.empty(2000, 3000, device=other(device))
    there.copy_(here.t())
    assert torch.equal(there.cpu(), here.t().cpu())
    assert torch.equal(here[::3, 5::2].to(other(device)).cpu(), here[::3, 5::2].cpu())


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1"])
def test_converting_copies(device: str) -> None:
    here = torch.randn(3000, 2000, device=device)
    there = here.to(device=other(device), dtype=torch.float16)
    assert torch.equal(there.cpu(), here.cpu().to(torch.float16))


def test_copies_while_both_allocate_and_free() -> None:
    torch.manual_seed(1)
    for step in range(50):
        size = 1 << (10 + step % 14)
        sums = torch.zeros(2)
        here = torch.full((size,), float(step), device="cuda:0")
        for turn in range(6):
            here = (here + 1).to(f"cuda:{(turn + 1) % 2}", non_blocking=True)
            sums[turn % 2] += 1
        assert here[0].item() == here[-1].item() == step + 6
        assert sums.tolist() == [3, 3]


def test_data_parallel_gives_the_gradients_of_one_gpu() -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 10)).cuda(0)
    inputs = torch.randn(512, 256, device="cuda:0")
    model(inputs).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.nn.DataParallel(model, device_ids=[0, 1])(inputs).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-3)


def test_a_model_over_two_gpus_trains() -> None:
    torch.manual_seed(3)
    first = torch.nn.Linear(256, 1024).to("cuda:0")
    second = torch.nn.Linear(1024, 1).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
    inputs, wanted = torch.randn(256, 256, device="cuda:0"), torch.randn(256, 1, device="cuda:1")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (second(first(inputs).tanh().to("cuda:1")) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
