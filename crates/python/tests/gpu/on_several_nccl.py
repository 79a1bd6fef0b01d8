"""Cases of several ranks: NCCL's collectives while memory moves, sleeps, or was registered with NCCL."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from on_several import ON_CPU, Job, tried


def churn(job: Job, index: int) -> None:
    """Allocates and frees so that a pool that remaps pages does so."""
    import torch

    device = job.device
    held = [torch.empty((3 + (index * 7 + k * 5) % 61) << 20, dtype=torch.uint8, device=device) for k in range(4)]
    del held[::2]
    held.append(torch.empty(100 << 20, dtype=torch.uint8, device=device))
    if index % 50 == 49:
        del held
        job.synchronize()
        torch.cuda.empty_cache()


def remaps(job: Job) -> int | None:
    if job.allocator != "millpond" or ON_CPU:
        return None
    import millpond

    return millpond.pool(job.rank).stats().pages_remapped


def exchange(job: Job, tensor: Any) -> list[int]:
    """Collectives that may read a registered tensor in place. How many elements each had wrong."""
    import torch
    import torch.distributed as dist

    world = job.world
    expected = (torch.arange(world, device=tensor.device) + (tensor[0] - job.rank)).view(world, 1)
    gathered = torch.empty(world, tensor.numel(), device=tensor.device)
    dist.all_gather_into_tensor(gathered.view(-1), tensor)
    swapped = torch.empty(world, tensor.numel() // world, device=tensor.device)
    dist.all_to_all_single(swapped, tensor.view(world, -1))
    received = torch.empty_like(tensor)
    to, source = (job.rank + 1) % world, (job.rank - 1) % world
    work = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to), dist.P2POp(dist.irecv, received, source)])
    for each in work:
        each.wait()
    wrong = [gathered != expected, swapped != expected, received != expected[source]]
    return [int(each.sum().item()) for each in wrong]


def captured_collectives(job: Job, sleep_every: int = 0, elements: int = 1 << 22) -> None:
    """Captured collectives replay a thousand times, while memory moves between the replays."""
    import torch
    import torch.distributed as dist

    device, world = job.device, job.world
    tensor = torch.zeros(elements, device=device)
    dist.all_reduce(tensor)
    exchange(job, tensor)
    job.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        summed = tensor * 2
        dist.all_reduce(summed)
        summed += 1
        gathered = torch.empty(world, elements, device=device)
        dist.all_gather_into_tensor(gathered.view(-1), tensor)
        swapped = torch.empty(world, elements // world, device=device)
        dist.all_to_all_single(swapped, tensor.view(world, -1))

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        graph.replay()
        churn(job, index)
        if sleep_every and index % sleep_every == sleep_every - 1:
            sleep_and_wake(job)
            graph.replay()
        eager = torch.full((1 + index % 1000,), 1.0, device=device)
        dist.all_reduce(eager)
        expected = torch.arange(index, index + world, device=device, dtype=torch.float32).view(world, 1)
        total = 2.0 * world * index + world * (world - 1) + 1
        wrong = [gathered != expected, swapped != expected, summed != total, eager != world]
        found = torch.stack([each.sum() for each in wrong]).tolist()
        assert found == [0] * 4, (index, found)
        return summed[0].item()

    job.steps(step, 1000)
    job.notes["remaps"] = remaps(job)


def reached_early(job: Job, elements: int = 1 << 22) -> None:
    """Before NCCL starts."""
    import torch

    job.early = [torch.zeros(elements, device=job.device) for _ in range(8)]


def registered_early(job: Job) -> None:
    """Tensors that NCCL registers when it starts are freed, their pages move, and others get their addresses."""
    import torch

    device = job.device
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
    if job.allocator == "millpond" and not ON_CPU:
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
        # PyTorch refuses it, or NCCL: which of them depends on their versions.
        assert job.notes["register_mem_pool"] != "ok", "a pool was registered whose pages may move"
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

    device = job.device
    tensor = torch.zeros(1 << 22, device=device)

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        dist.all_reduce(tensor)
        sleep_and_wake(job)
        dist.all_reduce(tensor)
        found = [tensor.min().item(), tensor.max().item()]
        total = job.world * (job.world * index + job.world * (job.world - 1) / 2)
        assert found == [total] * 2, (index, found)
        return found[0]

    job.steps(step, 10)


def evicted(job: Job) -> None:
    """A tag's memory serves the rest of the pool while collectives run, and comes back with its bytes."""
    import torch
    import torch.distributed as dist

    device, pool = job.device, None
    is_millpond = job.allocator == "millpond" and not ON_CPU
    if is_millpond:
        import millpond

    with millpond.torch.tag("aside") if is_millpond else nullcontext():
        aside = [torch.full((8 << 20,), float(k + job.rank), device=device) for k in range(6)]
    if is_millpond:
        pool = millpond.pool(job.rank).tagged("aside")

    def step(index: int) -> Any:
        if pool:
            job.notes["evicted, bytes"] = pool.evict(torch.cuda.current_stream().cuda_stream)
            assert pool.is_evicted
        churn(job, index)
        found = exchange(job, torch.full((1 << 20,), float(index + job.rank), device=device))
        assert found == [0] * 3, (index, found)
        if pool:
            pool.restore(torch.cuda.current_stream().cuda_stream)
        for k, each in enumerate(aside):
            assert each.min().item() == each.max().item() == float(k + job.rank + index), (index, k)
            each.add_(1)
        total = aside[0][0].clone()
        dist.all_reduce(total)
        return total.item()

    job.steps(step, 60)
    job.notes["remaps"] = remaps(job)


RANKS = (captured_collectives, registered_pool, slept, evicted)
