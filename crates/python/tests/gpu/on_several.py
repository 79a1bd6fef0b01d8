"""What a case of `jobs_on_two.py` and `jobs_on_four.py` works with."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

#: Whether the cases are only tried, without GPUs. All allocators are PyTorch's own of the host then.
ON_CPU = os.environ.get("JOBS_ON_CPU") == "1"
#: What NCCL says of the memory that it registers, by process.
NCCL_LOG = "/tmp/jobs-on-several-%p.log"
WARM, STEPS, WIDTH = (1, 3, 64) if ON_CPU else (5, 30, 1024)


def enable(allocator: str) -> None:
    """Before PyTorch is imported."""
    if ON_CPU:
        return
    if allocator == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()


class Job:
    """What a case reports: losses, times of steps, memory."""

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = "cpu" if ON_CPU else f"cuda:{self.rank}"
        # The GPUs that this process uses.
        self.gpus = [] if ON_CPU else [self.rank] if "RANK" in os.environ else [0, 1]
        self.losses: list[str] = []
        self.times: list[float] = []
        self.notes: dict[str, Any] = {}
        # Tensors from before NCCL was started.
        self.early: list[Any] = []

    def synchronize(self) -> None:
        import torch

        for gpu in self.gpus:
            torch.cuda.synchronize(gpu)

    def steps(self, step: Callable[[int], Any], count: int = STEPS) -> None:
        for index in range(WARM + count):
            self.synchronize()
            start = time.perf_counter()
            loss = step(index)
            self.synchronize()
            if index >= WARM:
                self.times.append(time.perf_counter() - start)
            if loss is not None:
                self.losses.append(float(loss).hex())

    def report(self) -> dict[str, Any]:
        import torch

        return {
            "rank": self.rank,
            "losses": self.losses,
            "ms": 1e3 * statistics.median(self.times) if self.times else None,
            "reserved": sum(torch.cuda.max_memory_reserved(device) for device in self.gpus),
            "requested": sum(torch.cuda.max_memory_allocated(device) for device in self.gpus),
            "notes": self.notes,
        }


def tried(work: Callable[[], Any]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return "ok"


def registrations() -> int:
    """How often NCCL says that it registered memory."""
    try:
        with open(NCCL_LOG.replace("%p", str(os.getpid()))) as log:
            return sum("egister" in line for line in log)
    except OSError:
        return 0
