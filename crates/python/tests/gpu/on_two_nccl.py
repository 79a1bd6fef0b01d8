"""Cases of `jobs_on_two.py`: NCCL's collectives while memory moves, sleeps, or was registered with NCCL."""

from __future__ import annotations

import os
from typing import Any

from on_two import Job, tried

EARLY = "JOBS_ON_TWO_EARLY"


def churn(job: Job, index: int) -> None:
    """Allocates and frees so that a pool that remaps pages does so."""
    import torch

    device = f"cuda:{job.rank}"
    held = [torch.empty((3 + (index * 7 + k * 5) % 61) << 20, dtype=torch.uint8, device=device) for k in range(4)]
    del held[::2]
    held.append(torch.empty(100 << 20, dtype=torch.uint8, device=device))
    if index % 50 == 49:
        del held
        torch.cuda.synchronize(job.rank)
        torch.cuda.empty_cache()


def remaps(job: Job) -> int | None:
    if job.allocator != "millpond":
        return None
    import millpond

    return millpond.pool(job.rank).stats().pages_remapped


def exchange(job: Job, tensor: Any) -> list[int]:
    """Collectives that may read a registered tensor in place. How many elements each had wrong."""
    import torch
    import torch.distributed as dist

    expected = torch.stack([tensor[0] - job.rank, tensor[0] - job.rank + 1]).view(2, 1)
    gathered = torch.empty(2, tensor.numel(), device=tensor.device)
    dist.all_gather_into_tensor(gathered, tensor)
    swapped = torch.empty(2, tensor.numel() // 2, device=tensor.device)
    dist.all_to_all_single(swapped, tensor.view(2, -1))
    received = torch.empty_like(tensor)
    other = 1 - job.rank
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, other), dist.P2POp(dist.irecv, received, other)])
    for each in work:
        each.wait()
    wrong = [gathered != expected, swapped != expected, received != expected[other]]
    return [int(each.sum().item()) for each in wrong]


def captured_collectives(job: Job, sleep_every: int = 0, elements: int = 1 << 22) -> None:
    """Captured collectives replay a thousand times, while memory moves between the replays."""
    import torch
    import torch.distributed as dist

    device = f"cuda:{job.rank}"
    tensor = torch.zeros(elements, device=device)
    dist.all_reduce(tensor)
    exchange(job, tensor)
    torch.cuda.synchronize(job.rank)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        summed = tensor * 2
        dist.all_reduce(summed)
        summed += 1
        gathered = torch.empty(2, elements, device=device)
        dist.all_gather_into_tensor(gathered, tensor)
        swapped = torch.empty(2, elements // 2, device=device)
        dist.all_to_all_single(swapped, tensor.view(2, -1))

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        graph.replay()
        churn(job, index)
        if sleep_every and index % sleep_every == sleep_every - 1:
            sleep_and_wake(job)
            graph.replay()
        eager = torch.full((1 + index % 1000,), 1.0, device=device)
        dist.all_reduce(eager)
        expected = torch.arange(index, index + 2, device=device, dtype=torch.float32).view(2, 1)
        wrong = [gathered != expected, swapped != expected, summed != 4.0 * index + 3, eager != 2]
        found = torch.stack([each.sum() for each in wrong]).tolist()
        assert found == [0] * 4, (index, found)
        return summed[0].item()

    job.steps(step, 1000)
    job.notes["remaps"] = remaps(job)


def registered_early(job: Job) -> None:
    """Tensors that NCCL registers when it starts are freed, their pages move, and others get their addresses."""
    import torch

    device = f"cuda:{job.rank}"
    tensors = job.early
    before = {tensor.data_ptr() for tensor in tensors}
    elements = tensors[0].numel()
    again = 0

    def step(index: int) -> Any:
        nonlocal again
        # Two, since two small ones may share a page.
        some = [index * 2 % len(tensors), index * 2 % len(tensors) + 1]
        for at in some:
            exchange(job, tensors[at].fill_(float(job.rank)))
        for at in some:
            tensors[at] = None
        churn(job, index)
        for at in some:
            tensors[at] = torch.full((elements,), float(index + job.rank), device=device)
            again += tensors[at].data_ptr() in before
        for at in some:
            found = exchange(job, tensors[at])
            assert found == [0] * 3, (index, found)

    job.steps(step, 200)
    job.notes.update({"remaps": remaps(job), "at an address from before": again})


def sleep_and_wake(job: Job) -> None:
    """Only millpond sleeps. No rank sleeps while another one may read its memory."""
    import torch.distributed as dist

    dist.barrier()
    job.synchronize()
    if job.allocator == "millpond":
        import millpond

        millpond.torch.sleep()
        millpond.torch.wake()
    dist.barrier()
    job.synchronize()


def registered_pool(job: Job, elements: int = 1 << 22) -> None:
    """Tensors of a MemPool that NCCL registered. Those of millpond are refused: their pages may move."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", job.rank)
    backend = dist.group.WORLD._get_backend(device)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.zeros(elements, device=device) for _ in range(4)]
    if job.allocator == "millpond":
        job.notes["register_mem_pool"] = tried(lambda: backend.register_mem_pool(pool))
        assert "uninitialized registration counter" in job.notes["register_mem_pool"]
        return
    backend.register_mem_pool(pool)

    def step(index: int) -> Any:
        tensor = tensors[index % len(tensors)].fill_(float(index + job.rank))
        found = exchange(job, tensor)
        assert found == [0] * 3, (index, found)
        churn(job, index)

    job.steps(step, 200)
    backend.deregister_mem_pool(pool)
    tensors.clear()


def slept(job: Job) -> None:
    """Collectives before and after the pool slept."""
    import torch
    import torch.distributed as dist

    device = f"cuda:{job.rank}"
    tensor = torch.zeros(1 << 22, device=device)

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        dist.all_reduce(tensor)
        sleep_and_wake(job)
        dist.all_reduce(tensor)
        found = [tensor.min().item(), tensor.max().item()]
        assert found == [4.0 * index + 2] * 2, (index, found)
        return found[0]

    job.steps(step, 10)


def registrations() -> int:
    """How often NCCL says that it registered memory."""
    try:
        with open(f"/tmp/jobs-on-two-{os.getpid()}.log") as log:
            return sum("egister" in line for line in log)
    except OSError:
        return 0


RANKS = (captured_collectives, registered_pool, registered_early, slept)
