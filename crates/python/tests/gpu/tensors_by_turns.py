"""What `torch.empty` costs, and how long a receiver of many shared tensors takes, by turns with each allocator, on one GPU.

    scripts/gpu-python tensors_by_turns [TURNS]       three turns by default
    COUNT=1600                                        shared tensors, of 2 MiB each, and as many of 4 KB

`long pages` is Millpond with pages of 32 MiB, for programs that share many tensors of some MiB.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

COUNT, LENGTHS = int(os.environ.get("COUNT", "1600")), (2 << 20, 4 << 10)
ROUNDS = 200
#: Also for the receiver, which imports this module.
ALLOCATOR = os.environ.get("TENSORS_ALLOCATOR")

if ALLOCATOR:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if ALLOCATOR == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "1"
    if ALLOCATOR in ("millpond", "long pages"):
        import millpond

        if ALLOCATOR == "long pages":
            millpond.torch.enable(page_sizes=("32MiB", "32MiB"))
        else:
            millpond.torch.enable()


def empties() -> str:
    """Nanoseconds for a tensor and its end. A GPU's tensor of no bytes is all but the allocator. What an allocator takes is a round's
    time beyond that of the round without bytes before it: a machine that others use is as slow in both."""
    import torch

    cuda, empty, uint8 = torch.device("cuda"), torch.empty, torch.uint8
    empty(1, device=cuda)

    def pairs(size: int) -> int:
        for _ in range(1000):
            empty((size,), dtype=uint8, device=cuda)
        return 1000

    def many(times: int) -> int:
        """Live at once, and freed in another order, as in a step."""
        live = [empty(((4000 + 512 * (n % 64)) * times,), dtype=uint8, device=cuda) for n in range(1000)]
        del live[::2]
        live.clear()
        return 1000

    kinds: dict[str, Callable[[int], int]] = {
        "4 KB": lambda times: pairs(4000 * times), "20 MB": lambda times: pairs(20_000_000 * times), "1,000 live": many,
    }
    found = {}
    for name, work in kinds.items():
        rounds = [(timed_ns(work, 0), timed_ns(work, 1)) for _ in range(ROUNDS)]
        without, beyond = statistics.median(one for one, _ in rounds), statistics.median(with_it - one for one, with_it in rounds)
        found[name] = f"{name} {beyond:.0f} beyond {without:.0f}"
    return "ns a tensor: " + ", ".join(found.values())


def timed_ns(work: Callable[[int], int], times: int) -> float:
    began = time.perf_counter_ns()
    count = work(times)
    return (time.perf_counter_ns() - began) / count


def receive(queue: Any, answers: Any) -> None:
    """Of each length in turn."""
    for _ in LENGTHS:
        receive_all(queue, answers)


def receive_all(queue: Any, answers: Any) -> None:
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    answers.put("ready")
    held = [queue.get(timeout=60)]
    began = time.perf_counter()
    held += [queue.get(timeout=60) for _ in range(COUNT - 1)]
    torch.cuda.synchronize()
    opened = time.perf_counter() - began
    right = all(int(held[n][0]) == n % 251 and int(held[n][-1]) == n % 251 for n in range(0, COUNT, 40))
    began = time.perf_counter()
    held.clear()
    torch.cuda.synchronize()
    answers.put((opened, time.perf_counter() - began, right))
    assert queue.get(timeout=60) == "end"


def shared() -> str:
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    receiver = context.Process(target=receive, args=(queue, answers), daemon=True)
    receiver.start()
    found = [f"{length >> 10} KiB: {exchange(length, queue, answers)}" for length in LENGTHS]
    receiver.join(20)
    return f"{COUNT} shared tensors of " + "; of ".join(found)


def exchange(length: int, queue: Any, answers: Any) -> str:
    import torch

    tensors = [torch.full((length,), n % 251, dtype=torch.uint8, device="cuda") for n in range(COUNT)]
    torch.cuda.synchronize()
    assert answers.get(timeout=60) == "ready"
    began = time.perf_counter()
    for tensor in tensors:
        queue.put(tensor)
    opened, closed, right = answers.get(timeout=90)
    whole = time.perf_counter() - began
    queue.put("end")
    assert right, "the receiver has other bytes"
    return f"received in {opened:.2f} s, closed in {closed:.2f} s, the whole exchange {whole:.2f} s"


def main() -> int:
    if ALLOCATOR:
        print({"empties": empties, "shared": shared}[sys.argv[1]](), flush=True)
        return 0
    turns, failed = int(sys.argv[1]) if len(sys.argv) > 1 else 3, 0
    for what in ("empties", "shared"):
        for _ in range(turns):
            for allocator in ("native", "expandable", "millpond", "long pages"):
                variables = {**os.environ, "TENSORS_ALLOCATOR": allocator}
                command = [sys.executable, __file__, what]
                try:
                    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
                    lines = done.stdout.splitlines() or ["FAILED: " + " / ".join(done.stderr.splitlines()[-2:])]
                    failed += done.returncode != 0
                except subprocess.TimeoutExpired:
                    lines, failed = ["FAILED: more than 120 s"], failed + 1
                print(f"{allocator:10} {lines[-1]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
