"""Jobs on two GPUs with PyTorch's own allocator and with millpond's native interface, by turns.

    scripts/gpu-python jobs_on_two [CASE…]

Each case runs twice with each allocator, in processes of its own, with one seed. The table compares losses to the last bit, the
memory that both GPUs reserved at most, and the median time of a step. A case may take a minute. One that fails, hangs or differs
is named at the end, and the status is 1 then.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

WARM, STEPS = 5, 30
LIMIT_S = 60
ALLOCATORS = ("native", "millpond")


def enable(allocator: str) -> None:
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()


class Job:
    """What a case reports: losses, times of steps, memory."""

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator
        self.rank = int(os.environ.get("RANK", "0"))
        self.losses: list[str] = []
        self.times: list[float] = []
        self.notes: dict[str, Any] = {}

    def steps(self, step: Callable[[int], Any], count: int = STEPS) -> None:
        import torch

        for index in range(WARM + count):
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            loss = step(index)
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
            if index >= WARM:
                self.times.append(time.perf_counter() - start)
            if loss is not None:
                self.losses.append(float(loss).hex())

    def report(self) -> dict[str, Any]:
        import torch

        devices = range(torch.cuda.device_count())
        return {
            "rank": self.rank,
            "losses": self.losses,
            "ms": 1e3 * statistics.median(self.times) if self.times else None,
            "reserved": sum(torch.cuda.max_memory_reserved(device) for device in devices),
            "requested": sum(torch.cuda.max_memory_allocated(device) for device in devices),
            "notes": self.notes,
        }


def network(width: int = 1024) -> Any:
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)]
    return torch.nn.Sequential(*layers, *[torch.nn.Linear(width, width) for _ in range(4)])


def inputs(step: int, device: str, width: int = 1024) -> Any:
    import torch

    rows = 256 + 128 * (step % 7)
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, width, generator=generator).to(device)


def train(job: Job, model: Any, device: str, seed: int = 0) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

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
    """A stream of GPU 1 reads a tensor of GPU 0, whose owner drops it at once."""
    import torch

    other = torch.cuda.Stream("cuda:1")

    def step(index: int) -> Any:
        source = torch.full((1 << 22,), float(index), device="cuda:0")
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream("cuda:0"))
        with torch.cuda.stream(other):
            other.wait_event(done)
            copies = [source.to("cuda:1", non_blocking=True) for _ in range(4)]
        source.record_stream(other)
        del source
        overwritten = torch.full((1 << 22,), -1.0, device="cuda:0")
        other.synchronize()
        assert all(copy.min().item() == copy.max().item() == float(index) for copy in copies)
        return overwritten.sum().item()

    job.steps(step)


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


def ddp(job: Job) -> None:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(network().cuda(job.rank), device_ids=[job.rank])
    train(job, model, f"cuda:{job.rank}", 1000 * job.rank)


def fsdp2(job: Job) -> None:
    from torch.distributed.fsdp import fully_shard

    model = network().cuda(job.rank)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    train(job, model, f"cuda:{job.rank}", 1000 * job.rank)


def tensor_parallel(job: Job) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = network().cuda(job.rank)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    train(job, parallelize_module(model, init_device_mesh("cuda", (2,)), plan), f"cuda:{job.rank}")


def experts(job: Job) -> None:
    """Each rank's rows go to two experts in uneven parts, and come back."""
    import torch
    import torch.distributed as dist
    from torch.distributed.nn.functional import all_to_all_single

    device = f"cuda:{job.rank}"
    expert = network().to(device)
    optimizer = torch.optim.AdamW(expert.parameters(), lr=1e-4)

    def step(index: int) -> Any:
        rows = inputs(index + 1000 * job.rank, device)
        kept = (rows.shape[0] * (1 + (index + job.rank) % 5)) // 7
        out = [kept, rows.shape[0] - kept]
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


def captured_all_reduce(job: Job) -> None:
    """A captured all_reduce replays a thousand times, while memory moves between the replays."""
    import torch
    import torch.distributed as dist

    device = f"cuda:{job.rank}"
    tensor = torch.zeros(1 << 20, device=device)
    dist.all_reduce(tensor)
    torch.cuda.synchronize(job.rank)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = tensor * 2
        dist.all_reduce(inside)
        result = inside + 1

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        graph.replay()
        churn(job, index)
        eager = torch.full((1 + index % 1000,), 1.0, device=device)
        dist.all_reduce(eager)
        expected = 2.0 * (index + index + 1) + 1
        found = [result.min().item(), result.max().item(), eager.min().item(), eager.max().item()]
        assert found == [expected, expected, 2.0, 2.0], (index, expected, found)
        return found[0]

    job.steps(step, 1000)
    job.notes["remaps"] = remaps(job)


def registered_pool(job: Job) -> None:
    """Tensors of a MemPool that NCCL registered."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", job.rank)
    backend = dist.group.WORLD._get_backend(device)
    dist.all_reduce(torch.zeros(1, device=device))
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.zeros(1 << 22, device=device)
    backend.register_mem_pool(pool)

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        dist.all_reduce(tensor)
        churn(job, index)
        found = [tensor.min().item(), tensor.max().item()]
        assert found == [2.0 * index + 1] * 2, (index, found)
        return found[0]

    job.steps(step, 200)
    backend.deregister_mem_pool(pool)
    del tensor


def slept(job: Job) -> None:
    """Collectives before and after the pool slept."""
    import torch
    import torch.distributed as dist

    device = f"cuda:{job.rank}"
    tensor = torch.zeros(1 << 22, device=device)

    def step(index: int) -> Any:
        tensor.fill_(float(index + job.rank))
        dist.all_reduce(tensor)
        torch.cuda.synchronize(job.rank)
        if job.allocator == "millpond":
            import millpond

            pool = millpond.pool(job.rank)
            pool.sleep()
            pool.wake()
        dist.all_reduce(tensor)
        found = [tensor.min().item(), tensor.max().item()]
        assert found == [4.0 * index + 2] * 2, (index, found)
        return found[0]

    job.steps(step, 10)


def first_copy(job: Job) -> None:
    """What access on demand costs: copies of a fresh tensor, and memory that no other GPU uses."""
    import torch

    torch.zeros(1, device="cuda:1")
    torch.zeros(1, device="cuda:0").to("cuda:1")

    def timed(work: Callable[[], Any]) -> float:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        start = time.perf_counter()
        kept = work()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        micros = 1e6 * (time.perf_counter() - start)
        del kept
        return micros

    firsts, seconds, plain, held = [], [], [], []
    for _ in range(10):
        start = time.perf_counter()
        tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:0")
        plain.append(1e6 * (time.perf_counter() - start))
        target = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
        firsts.append(timed(lambda: target.copy_(tensor)))
        seconds.append(timed(lambda: target.copy_(tensor)))
        held += [tensor, target]
    for name, values in (("new 64 MiB, us", plain), ("first copy, us", firsts), ("second copy, us", seconds)):
        job.notes[name] = round(statistics.median(values))


ALONE = (data_parallel, pipeline, record_stream, other_process, first_copy)
RANKS = (ddp, fsdp2, tensor_parallel, experts, captured_all_reduce, registered_pool, slept)
# The case's name, its function, further variables.
CASES: dict[str, tuple[Callable[[Job], None], dict[str, str]]] = {
    **{case.__name__: (case, {}) for case in ALONE + RANKS},
    "captured_all_reduce_registered": (captured_all_reduce, {"NCCL_GRAPH_REGISTER": "1", "NCCL_LOCAL_REGISTER": "1"}),
}


def child(name: str, allocator: str) -> None:
    enable(allocator)
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    job = Job(allocator)
    case = CASES[name][0]
    if case in RANKS:
        import torch.distributed as dist

        torch.cuda.set_device(job.rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", job.rank))
    case(job)
    print("RESULT " + json.dumps(job.report()), flush=True)
    if case in RANKS:
        torch.cuda.synchronize()
        dist.barrier()
        dist.destroy_process_group()


def once(name: str, allocator: str, port: int) -> tuple[list[dict[str, Any]], str]:
    """The results of the ranks, and what went wrong."""
    function, more = CASES[name]
    count = 2 if function in RANKS else 1
    common = {**os.environ, **more, "NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    running = []
    for rank in range(count):
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if count > 1 else {}
        command = [sys.executable, __file__, "--child", name, allocator]
        process = subprocess.Popen(
            command, env={**common, **(ranks if count > 1 else {}), **where}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        running.append(process)
    end, results, wrong = time.monotonic() + LIMIT_S, [], []
    for process in running:
        try:
            said = process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
            wrong.append(f"still ran after {LIMIT_S} s")
        lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
        results += [json.loads(line[7:]) for line in lines]
        if process.returncode != 0 or not lines:
            wrong.append(f"status {process.returncode}:\n" + "\n".join(said.splitlines()[-25:]))
    return results, "\n".join(wrong)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:4])
        return 0
    names = sys.argv[1:] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        print(f"jobs_on_two: no case {unknown[0]!r}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    port, rows, failed = 29700, [], []
    for name in names:
        found: dict[str, list[list[dict[str, Any]]]] = {allocator: [] for allocator in ALLOCATORS}
        for allocator in ALLOCATORS * 2:
            port += 1
            start = time.monotonic()
            results, wrong = once(name, allocator, port)
            print(f"{name} {allocator}: {'FAILED' if wrong else 'ok'}, {time.monotonic() - start:.0f} s", flush=True)
            if wrong:
                print(wrong, flush=True)
                failed.append(f"{name} {allocator}")
                continue
            found[allocator].append(sorted(results, key=lambda result: result["rank"]))
        losses = {tuple(tuple(rank["losses"]) for rank in run) for runs in found.values() for run in runs}
        if len(losses) > 1:
            failed.append(f"{name}: losses differ")
        cells = [name, "equal" if len(losses) == 1 else "differ" if losses else "none"]
        for allocator in ALLOCATORS:
            runs = found[allocator]
            held = max((sum(rank["reserved"] for rank in run) for run in runs), default=0)
            asked = max((sum(rank["requested"] for rank in run) for run in runs), default=0)
            times = [run[0]["ms"] for run in runs if run[0]["ms"] is not None]
            cells += [f"{held / 2**20:.0f}", f"{asked / 2**20:.0f}", ", ".join(f"{ms:.2f}" for ms in times)]
        cells.append("; ".join(f"{a}: {run[0]['notes']}" for a in ALLOCATORS for run in found[a] if run[0]["notes"]))
        rows.append(cells)
    heads = ["case", "losses"]
    for allocator in ALLOCATORS:
        heads += [f"{allocator}: reserved, MiB", "allocated, MiB", "ms a step, two turns"]
    print("| " + " | ".join([*heads, "more"]) + " |\n" + "| --- " * (len(heads) + 1) + "|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    for what in failed:
        print("jobs_on_two:", what)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
