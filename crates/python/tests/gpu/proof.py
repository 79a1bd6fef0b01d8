"""Does training with Millpond give the losses of PyTorch's own allocator, in as little memory and as fast?

    python proof.py [--jobs mlp,conv,gpt,transformers] [--ways eager,compiled,…] [--of native-interface] [--rounds 9]

Each job of `jobs.py` is trained in each way: eager, compiled, compiled with CUDA graphs, with activation checkpointing, with
autocast, and as one captured graph. There is one process for each job and allocator. Both take turns of the same steps, with
the same seeds and deterministic algorithms. Prints a Markdown table. Ends with status 1 where losses differ in a bit, where
more than 1.03 times the requested memory was reserved, or where only PyTorch's own allocator can do it.

Times are medians. The ratio is the median of the turns' ratios, with the interval in which that lies with 95 % confidence.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from typing import Any

from steps import DISCARDED, Asked, interval

JOBS = ("mlp", "conv", "gpt", "transformers")
WAYS = ("eager", "compiled", "reduce-overhead", "checkpointing", "autocast", "captured")
OURS = ("native-interface", "plug-in")
#: The most that may be reserved, over what is requested.
MOST_RESERVED = 1.03
#: Steps before the first turn.
WARM_STEPS = 12
#: How long a turn takes, about.
TURN_SECONDS = 0.1
#: Seconds after which no more turns are timed: what follows is compared, with fewer of them.
PATIENCE = 215
MIB = 1 << 20


# ---- one process: a job with one allocator -----------------------------------------------------------------------------


def work(job: str, allocator: str) -> None:
    """Answers lines on the input: `begin WAY`, or `run FIRST COUNT`."""
    if allocator in OURS:
        import millpond

        millpond.torch.enable(backend=allocator)  # type: ignore[arg-type]
    import torch
    from torch._inductor import config

    import jobs

    # Else kernels are chosen by their speed, and two processes may choose different ones.
    if hasattr(config, "deterministic"):
        config.deterministic = True
    step: Any = None
    for line in sys.stdin:
        what, *words = line.split()
        try:
            if what == "begin":
                step = None
                torch._dynamo.reset()
                gc.collect()
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                step = jobs.steps_of(job, words[0])
                name = torch.cuda.get_device_properties(0).name
                answer: dict[str, Any] = {"machine": f"{name}, PyTorch {torch.__version__}"}
            else:
                losses, times = [], []
                for number in range(int(words[0]), int(words[0]) + int(words[1])):
                    began = time.perf_counter()
                    losses.append(step(number))
                    times.append(1e3 * (time.perf_counter() - began))
                figures = torch.cuda.memory_stats()
                answer = {
                    "losses": losses,
                    "ms": times,
                    "requested": figures["requested_bytes.all.peak"],
                    "reserved": figures["reserved_bytes.all.peak"],
                    "retries": figures["num_alloc_retries"],
                }
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            answer = {"failure": f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else repr(error)}
        print(json.dumps(answer), flush=True)


# ---- both: turns, and what came of them --------------------------------------------------------------------------------


class Side:
    """What one allocator did in one way."""

    def __init__(self, process: Asked) -> None:
        self.process = process
        self.losses: list[float] = []
        self.times: list[float] = []
        self.requested = self.reserved = 0
        self.failure: str | None = None
        self.machine = ""

    def ask(self, line: str) -> list[float]:
        """The steps' times."""
        told = self.process.ask(line)
        self.failure = self.failure or told.get("failure")
        self.machine = told.get("machine", self.machine)
        self.losses += told.get("losses", [])
        self.requested, self.reserved = told.get("requested", 0), told.get("reserved", 0)
        return list(told.get("ms", []))

    def warm(self, way: str) -> None:
        self.ask(f"begin {way}")
        if self.failure is None:
            self.times = self.ask(f"run 0 {WARM_STEPS}")

    @property
    def over(self) -> float:
        return self.reserved / self.requested

    @property
    def step(self) -> float:
        return statistics.median(self.times)


def turns(native: Side, ours: Side, rounds: int) -> list[float]:
    """Both make the same steps, one after the other; by how much ours took longer."""
    count = min(max(round(1e3 * TURN_SECONDS / native.step), 2 + DISCARDED), 60)
    for side in (native, ours):
        side.times = []
    ratios: list[float] = []
    for turn in range(rounds):
        took = {}
        # Who goes first changes from turn to turn.
        for side in (native, ours) if turn % 2 == 0 else (ours, native):
            kept = side.ask(f"run {WARM_STEPS + turn * count} {count}")[DISCARDED:]
            if side.failure:
                return ratios
            side.times += kept
            took[side] = sum(kept)
        ratios.append(took[ours] / took[native])
    return ratios


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def compare(job: str, way: str, native: Side, ours: Side, rounds: int) -> bool:
    """Prints a row; whether it is as it should be."""
    # One after the other: the second finds in the cache what the first compiled, and so runs the same kernels.
    for side in (native, ours):
        side.warm(way)
    ratios = [] if native.failure or ours.failure else turns(native, ours, rounds)
    if native.failure or ours.failure:
        row(job, way, *(side.failure or "runs" for side in (native, ours)), *[""] * 5)
        return native.failure is not None
    same = native.losses == ours.losses
    differs = next((at for at, pair in enumerate(zip(native.losses, ours.losses)) if pair[0] != pair[1]), None)
    fits = ours.over <= MOST_RESERVED
    speed = f"{statistics.median(ratios):.3f}"
    if len(ratios) > 2:
        low, high = interval(sorted(ratios))
        speed += f" ({low:.3f} to {high:.3f})"
    row(
        job,
        way,
        f"{len(ours.losses)} equal" if same else f"**differ** from step {differs} on",
        f"{ours.requested / MIB:.0f} MiB",
        f"{native.over:.3f}",
        f"{ours.over:.3f}" if fits else f"**{ours.over:.3f}**",
        f"{native.step:.2f} ms",
        f"{ours.step:.2f} ms",
        speed,
    )
    return same and fits


def listed(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}, but {', '.join(known)}")
        return text.split(",")

    return parse


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(prog="proof", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=listed(JOBS), default=list(JOBS), help=f"of {','.join(JOBS)}; all by default")
    parser.add_argument("--ways", type=listed(WAYS), default=list(WAYS), help=f"of {','.join(WAYS)}; all by default")
    parser.add_argument("--of", choices=(*OURS, "native"), default=OURS[0], help="what is held against native")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each process (9)")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds must be 1 or more")
    began, good, machine = time.monotonic(), True, ""
    print(time.strftime("%Y-%m-%d %H:%MZ", time.gmtime()) + f"; {given.of} beside native\n")
    row("job", "way", "losses", "requested", "native, reserved", "ours, reserved", "native, a step", "ours, a step", "ratio")
    row(*["---"] * 9)
    with tempfile.TemporaryDirectory() as cache:
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        for job in given.jobs:
            if job == "transformers" and importlib.util.find_spec("transformers") is None:
                row(job, "", "the package transformers is not installed", *[""] * 6)
                continue
            allocators = ("native", given.of)
            processes = [Asked(__file__, "--work", job, each, environment=environment) for each in allocators]
            for way in given.ways:
                late = time.monotonic() - began > PATIENCE
                native, ours = (Side(process) for process in processes)
                good &= compare(job, way, native, ours, 1 if late else given.rounds)
                machine = native.machine or machine
            for process in processes:
                process.end()
    print(f"\n{machine}; {time.monotonic() - began:.0f} s")
    if not good:
        sys.exit("proof: not all is as with native; see the table")


if __name__ == "__main__":
    main()
