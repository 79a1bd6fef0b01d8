"""Times training steps under PyTorch's own allocator and under millpond, side by side, on one GPU.

    python steps.py [--pairs 1] [--rounds 40] [--steps 20] [--warm 150] [--of millpond] [--against native] [mlp] [conv] [gpt]

Two processes train the same model with the same seeds. They take turns of a fraction of a second, so that what changes the
speed of the machine meanwhile changes both; the shapes of a turn are the same for both. Prints, for each job, the median
step, and the median of the turns' ratios with the interval in which that lies with 95 % confidence (from the order of the
ratios, without assuming how they are distributed).

A process that waits for its processor may be slower than another of the same kind for as long as it lives. ``--pairs``
starts that many pairs, one after the other, and ``--of native`` measures PyTorch's own allocator against itself: how far
that is from 1 says how far a ratio may be so by chance. ``--of sampled --against millpond`` says what it costs to track blocks
by sampled call stacks, and ``--of tracked`` what each block's costs. ``--of guarded`` and ``--of redzones`` say what a guard
costs (docs/guard.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

JOBS = ("mlp", "conv", "gpt")
#: The variable that each sets. All but PyTorch's own are the pool.
ALLOCATORS = {
    "millpond": {},
    "sampled": {"MILLPOND_TRACK": "sampled"},
    "tracked": {"MILLPOND_TRACK": "all"},
    "guarded": {"MILLPOND_GUARD": "all"},
    "redzones": {"MILLPOND_GUARD": "redzones"},
    "native": {},
}
# The first steps of a turn find the caches of processor and GPU as the other process left them.
DISCARDED = 3


def work(job: str, allocator: str) -> None:
    """Trains as many steps as each line of the input says, from which on, and tells how long each took."""
    pool: Any = None
    if allocator != "native":
        import millpond

        millpond.torch.enable()
        pool = millpond
    import torch

    import jobs

    step = jobs.steps_of(job)

    def counted() -> tuple[int, int]:
        if pool is None or not torch.cuda.is_initialized():
            return 0, 0
        stats = pool.stats(0)
        return stats.allocations, stats.misses

    for line in sys.stdin:
        first, count = map(int, line.split())
        before, times = counted(), []
        for number in range(first, first + count):
            began = time.perf_counter()
            step(number)
            times.append(time.perf_counter() - began)
        after = counted()
        allocations, misses = (now - then for now, then in zip(after, before))
        print(json.dumps({"ms": [1e3 * t for t in times], "allocations": allocations, "misses": misses}), flush=True)


class Asked:
    """A process that answers each line with one of JSON."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says so
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a process ended early, with {self.process.wait()}; its message is above")
        told: dict[str, Any] = json.loads(answer)
        return told

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Worker(Asked):
    def __init__(self, job: str, allocator: str) -> None:
        environment = {**os.environ, **ALLOCATORS[allocator]}
        super().__init__(__file__, "--work", job, allocator, environment=environment)
        self.forget()

    def run(self, first: int, count: int) -> list[float]:
        told = self.ask(f"{first} {count}")
        self.allocations += told["allocations"]
        self.misses += told["misses"]
        self.steps += count
        return list(told["ms"])

    def forget(self) -> None:
        self.kept: list[float] = []
        self.allocations = self.misses = self.steps = 0


def interval(sorted_values: list[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence: between the order statistics of the sign test."""
    count = len(sorted_values)
    away = round(0.98 * count**0.5 + 0.5)
    middle = count // 2
    return sorted_values[max(middle - away, 0)], sorted_values[min(middle + away, count - 1)]


def compare(job: str, of: str, given: argparse.Namespace) -> float:
    """Prints what one pair of processes took; returns the ratio."""
    workers = [Worker(job, given.against), Worker(job, of)]
    for worker in workers:
        worker.run(0, given.warm)
        worker.forget()
    ratios = []
    for turn in range(given.rounds):
        took = [0.0, 0.0]
        # Who goes first changes from turn to turn.
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            kept = workers[at].run(given.warm + turn * given.steps, given.steps)[DISCARDED:]
            workers[at].kept += kept
            took[at] = sum(kept)
        ratios.append(took[1] / took[0])
    for worker in workers:
        worker.end()
    first, other = workers
    ratio = statistics.median(ratios)
    low, high = interval(sorted(ratios))
    misses = ""
    if of != "native":
        each = other.allocations / other.steps, other.misses / other.steps
        misses = f"; {each[0]:.1f} allocations a step, {each[1]:.3f} of them missed"
    print(
        f"{job}: {given.against} {statistics.median(first.kept):.3f} ms, {of} {statistics.median(other.kept):.3f} ms a step;"
        f" ratio {ratio:.4f} ({low:.4f} to {high:.4f}), {given.rounds} turns of {given.steps} steps{misses}",
        flush=True,
    )
    return ratio


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all by default")
    parser.add_argument("--of", choices=ALLOCATORS, default="millpond", help="what is measured")
    parser.add_argument("--against", choices=ALLOCATORS, default="native", help="what it is held against")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of processes, one after the other")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each process")
    parser.add_argument("--steps", type=int, default=20, help=f"steps of a turn, of which {DISCARDED} are not counted")
    parser.add_argument("--warm", type=int, default=150, help="steps before the first turn")
    given = parser.parse_args()
    if unknown := [job for job in given.jobs if job not in JOBS]:
        parser.error(f"no job {unknown[0]!r}; there are {', '.join(JOBS)}")
    if given.steps <= DISCARDED or given.rounds < 1 or given.pairs < 1 or given.warm < 0:
        parser.error(f"at least one pair and one turn, and more than {DISCARDED} steps in each")
    for job in given.jobs or JOBS:
        ratios = sorted(compare(job, given.of, given) for _ in range(given.pairs))
        if len(ratios) > 1:
            print(f"{job}: {len(ratios)} pairs, ratio {statistics.median(ratios):.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f})")


if __name__ == "__main__":
    main()
