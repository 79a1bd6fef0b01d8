"""Models that train on several GPUs, and tensors that two GPUs or two processes use."""

from __future__ import annotations

import ctypes
from typing import Any

from on_several import ON_CPU, WIDTH, Job, enable


def network(width: int = WIDTH) -> Any:
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    return torch.nn.Sequential(*layers, *[torch.nn.Linear(width, width) for _ in range(4)])


def inputs(step: int, device: str, width: int = WIDTH) -> Any:
    import torch

    rows = 256 + 128 * (step % 7)
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, width, generator=generator).to(device)


def train(job: Job, model: Any, device: str, seed: int = 0, *, is_offloaded: bool = False) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if is_offloaded and job.allocator == "millpond" and not ON_CPU:
        import millpond

        millpond.torch.offload(optimizer)

    def step(index: int) -> Any:
        optimizer.zero_grad()
        loss = model(inputs(index + seed, device)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    job.steps(step)


def data_parallel(job: Job) -> None:
    import torch

    train(job, torch.nn.DataParallel(network().cuda(0), device_ids=[0, 1]), "cuda:0")


def pipeline(job: Job) -> None:
    import torch

    whole = network()
    first, second = whole[:3].to("cuda:0"), whole[3:].to("cuda:1")
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-4)

    def step(index: int) -> Any:
        optimizer.zero_grad()
        total = 0.0
        for part in inputs(index, "cuda:0").chunk(4):
            loss = second(first(part).to("cuda:1", non_blocking=True)).square().mean()
            loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    job.steps(step)


def record_stream(job: Job) -> None:
    """A stream of GPU 1 reads a tensor of GPU 0 late, whose owner drops it at once."""
    import torch

    driver = ctypes.CDLL("libcuda.so.1")
    other = torch.cuda.Stream("cuda:1")
    late = []

    def step(index: int) -> Any:
        source = torch.full((1 << 22,), float(index), device="cuda:0")
        copy = torch.empty(1 << 22, device="cuda:1")
        torch.cuda.synchronize(0)
        with torch.cuda.stream(other):
            torch.cuda._sleep(2_000_000)
        # PyTorch's own copies run on a stream of the source.
        addresses = [ctypes.c_uint64(tensor.data_ptr()) for tensor in (copy, source)]
        with torch.cuda.device(1):
            said = driver.cuMemcpyAsync(*addresses, ctypes.c_size_t(16 << 20), ctypes.c_void_p(other.cuda_stream))
        assert said == 0, said
        source.record_stream(other)
        del source
        overwritten = torch.full((1 << 22,), -1.0, device="cuda:0")
        late.append(not other.query())
        other.synchronize()
        assert copy.min().item() == copy.max().item() == float(index)
        return overwritten.sum().item()

    job.steps(step)
    job.notes["read late"] = f"{sum(late)} of {len(late)}"


def receive(queue: Any, answers: Any, allocator: str) -> None:
    enable(allocator)
    import torch

    while (tensor := queue.get()) is not None:
        total = tensor.to("cuda:1").double().sum().item()
        tensor.add_(1)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        del tensor
        answers.put(total)


def other_process(job: Job) -> None:
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, answers, job.allocator))
    child.start()

    def step(index: int) -> Any:
        tensor = torch.arange(1 << (12 + index % 9), device="cuda:0", dtype=torch.float32)
        expected = tensor.double().sum().item()
        torch.cuda.synchronize(0)
        queue.put(tensor)
        assert answers.get(timeout=30) == expected
        assert tensor[0].item() == 1.0 and tensor[-1].item() == tensor.numel()
        return expected

    try:
        job.steps(step)
    finally:
        queue.put(None)
        child.join(10)


def ddp(job: Job, *, is_offloaded: bool = False) -> None:
    import torch

    ids = None if ON_CPU else [job.rank]
    model = torch.nn.parallel.DistributedDataParallel(network().to(job.device), device_ids=ids)
    train(job, model, job.device, 1000 * job.rank, is_offloaded=is_offloaded)


def ddp_offloaded(job: Job) -> None:
    """With millpond, the optimizer's state is evicted between the steps, beside NCCL."""
    ddp(job, is_offloaded=True)


def fsdp2(job: Job) -> None:
    from torch.distributed.fsdp import fully_shard

    model = network().to(job.device)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    train(job, model, job.device, 1000 * job.rank)


def tensor_parallel(job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = network().to(job.device)
    # All layers, since AdamW does not mix tensors of both kinds.
    plan = {name: kind() for name, kind in zip("023456", (ColwiseParallel, RowwiseParallel) * 3)}
    mesh = init_device_mesh("cpu" if ON_CPU else "cuda", (job.world,))
    train(job, parallelize_module(model, mesh, plan), job.device)


def experts(job: Job) -> None:
    """Each rank's rows go to the experts of all ranks in uneven parts, and come back."""
    import torch
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_to_all_single

    device = job.device
    expert = network().to(device)
    optimizer = torch.optim.AdamW(expert.parameters(), lr=1e-4)

    def step(index: int) -> Any:
        rows = inputs(index + 1000 * job.rank, device)
        shares = [1 + (index + job.rank + expert_of) % 5 for expert_of in range(job.world)]
        out = [rows.shape[0] * share // sum(shares) for share in shares]
        out[-1] += rows.shape[0] - sum(out)
        sizes = torch.tensor(out, device=device)
        theirs = torch.empty_like(sizes)
        dist.all_to_all_single(theirs, sizes)
        back = theirs.tolist()
        optimizer.zero_grad()
        arrived = all_to_all_single(torch.empty(sum(back), rows.shape[1], device=device), rows.requires_grad_(), back, out)
        returned = all_to_all_single(torch.empty_like(rows), expert(arrived), out, back)
        loss = returned.square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    job.steps(step)


def stages(job: Job) -> None:
    """A pipeline with a stage on each rank: eight micro-batches, one forward and one backward by turns."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(1 + job.rank)
    linear = torch.nn.Linear
    layers = [layer for _ in range(3) for layer in (linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), linear(4 * WIDTH, WIDTH))]
    module = torch.nn.Sequential(*layers).to(job.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    stage = PipelineStage(module, job.rank, job.world, torch.device(job.device))
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda got, wanted: (got - wanted).square().mean())

    def step(index: int) -> Any:
        optimizer.zero_grad()
        whole = torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(index)).to(job.device)
        if job.rank == 0:
            schedule.step(whole)
        elif job.rank == job.world - 1:
            losses: list[Any] = []
            schedule.step(target=whole, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        return torch.stack(losses).mean().item() if job.rank == job.world - 1 else None

    job.steps(step)


ALONE = (data_parallel, pipeline, record_stream, other_process)
RANKS = (ddp, ddp_offloaded, fsdp2, tensor_parallel, experts)
