"""Does a job run under a limit just above what it requests, and how fast? Prints a Markdown table.

    python limits.py [--over 1.03] [--seconds 8] [JOB…]

Each job of `record.py` first runs without a limit, with PyTorch's own allocator, for some seconds. That says how many steps
it makes and how much it requests at once. Then PyTorch's allocator, the same with expandable segments, and Millpond each
make the same steps with the same seed, each in a process of its own. All three get the same limit in the same way, by
`torch.cuda.set_per_process_memory_fraction`. The clock starts after some steps without a limit.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

JOBS = {
    "gpt": "GPT, varying length",
    "experts": "mixture of experts",
    "diffuse": "diffusion",
    "resnet": "ResNet-50, varying size",
}
ALLOCATORS = {"native": "native", "expandable": "expandable segments", "millpond": "Millpond"}
SEED = 7
#: Steps before the clock starts.
WARM_STEPS = 5
GIB = 1 << 30
#: Seconds after which a process is stopped.
PATIENCE = 90


def work(job: str, allocator: str, limit: int, steps: int, seconds: float) -> None:
    """Runs a job in this process, and prints what came of it. Without `steps`, it runs for so many seconds."""
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()
    import torch

    import record

    device = torch.cuda.get_device_properties(0)
    # Some steps without a limit load the kernels, which takes seconds, and differently long in each process.
    warming = record.JOBS[job]()
    for _ in range(WARM_STEPS):
        next(warming)
    del warming
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / device.total_memory)
    torch.cuda.reset_peak_memory_stats()
    random.seed(SEED)
    torch.manual_seed(SEED)
    retries_before = torch.cuda.memory_stats()["num_alloc_retries"]
    done, error, began = 0, None, time.perf_counter()
    try:
        for _ in record.JOBS[job]():
            done += 1
            if done == steps or (not steps and time.perf_counter() - began > seconds):
                break
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as out_of_memory:
        error = str(out_of_memory)
    took = time.perf_counter() - began
    figures = torch.cuda.memory_stats()
    result = {
        "steps": done,
        "seconds": took,
        "error": error,
        "retries": figures["num_alloc_retries"] - retries_before,
        "requested": figures["requested_bytes.all.peak"],
        "reserved": figures["reserved_bytes.all.peak"],
        "machine": f"{device.name}, PyTorch {torch.__version__}",
    }
    print(json.dumps(result), flush=True)


def run(job: str, allocator: str, limit: int = 0, steps: int = 0, seconds: float = 0.0) -> dict[str, Any]:
    """The same in a process of its own. A result without steps says why there is none."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
    if allocator == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, __file__, "--run", job, allocator, str(limit), str(steps), str(seconds)]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"stopped after {PATIENCE} s"}
    if ended.returncode != 0 or not ended.stdout.strip():
        print(ended.stderr, file=sys.stderr)
        return {"failure": f"failed with status {ended.returncode}"}
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    if result["error"]:
        print(f"{job}, {allocator}: {result['error']}", file=sys.stderr)
    return result


def cell(result: dict[str, Any]) -> str:
    """What one run came to, for the table."""
    if "failure" in result:
        return str(result["failure"])
    if result["error"]:
        return f"out of memory at step {result['steps'] + 1}"
    retries = result["retries"]
    said = "no retries" if retries == 0 else "1 retry" if retries == 1 else f"{retries} retries"
    return f"{result['seconds']:.1f} s, {said}"


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6]))
        return
    parser = argparse.ArgumentParser(prog="limits", description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"of {', '.join(JOBS)}; all by default")
    parser.add_argument("--over", type=float, default=1.03, help="the limit over what the job requests (1.03)")
    parser.add_argument("--seconds", type=float, default=8.0, help="how long a job runs without a limit (8)")
    given = parser.parse_args()
    if unknown := [job for job in given.jobs if job not in JOBS]:
        parser.error(f"no job {unknown[0]!r}; there are {', '.join(JOBS)}")
    if not (given.over > 0 and 0 < given.seconds < PATIENCE):
        parser.error(f"--over must be above 0, and --seconds above 0 and below {PATIENCE}")

    failed, headed = False, False
    for job in given.jobs or JOBS:
        free = run(job, "native", seconds=given.seconds)
        if free.get("error") or "failure" in free:
            sys.exit(f"limits: {job} does not run without a limit: {cell(free)}")
        if not headed:
            headed = True
            date = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime())
            print(f"{free['machine']}, {date}; limit {given.over:g} x requested; the same steps in each run\n")
            row("job", "requested", "limit", "steps", "native, no limit", *ALLOCATORS.values())
            row(*["---"] * (5 + len(ALLOCATORS)))
        limit = int(given.over * free["requested"])
        results = [run(job, allocator, limit, free["steps"]) for allocator in ALLOCATORS]
        failed |= any("failure" in result for result in results)
        sizes = f"{free['requested'] / GIB:.2f} GiB", f"{limit / GIB:.2f} GiB"
        row(JOBS[job], *sizes, str(free["steps"]), cell(free), *map(cell, results))
    if failed:
        sys.exit("limits: a run failed; its message is above")


if __name__ == "__main__":
    main()
