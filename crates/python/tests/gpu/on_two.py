"""What a case of `jobs_on_two.py` works with."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

WARM, STEPS = 5, 30


def enable(allocator: str) -> None:
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()


class Job:
    """What a case reports: losses, times of steps, memory."""

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator
        self.rank = int(os.environ.get("RANK", "0"))
        # The GPUs that this process uses.
        self.gpus = [self.rank] if "RANK" in os.environ else [0, 1]
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
