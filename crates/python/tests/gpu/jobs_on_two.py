"""Jobs on two GPUs with PyTorch's own allocator and with millpond's native interface, by turns.

    scripts/gpu-python jobs_on_two [--turns N] [--only ALLOCATOR] [CASE…]

Each case runs twice with each allocator, in processes of its own, with one seed. The table compares losses to the last bit, the
memory that both GPUs reserved at most, and the median time of a step. A case that fails, hangs or differs is named at the end, and
the status is 1 then.

The processes of the next turns import PyTorch while a turn runs, and wait for a line.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import on_two_memory
import on_two_nccl
import on_two_training
from on_two import Job, enable
from on_two_nccl import EARLY, captured_collectives, registered_early, registrations
from on_two_training import ddp

LIMIT_S = 40
ALLOCATORS = ("native", "millpond")
LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "REG", "NCCL_DEBUG_FILE": "/tmp/jobs-on-two-%p.log"}
GRAPHS = {"NCCL_GRAPH_REGISTER": "1"}
# PyTorch registers all tensors with NCCL.
TRACKED = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
# A tensor within one page, which NCCL lets other processes map.
SMALL = 1 << 18
Case = Callable[[Job], None]
# What a case does, its processes, further variables.
CASES: dict[str, tuple[Case, int, dict[str, str]]] = {
    **{case.__name__: (case, 1, {}) for case in on_two_training.ALONE + on_two_memory.ALONE},
    **{case.__name__: (case, 2, {}) for case in on_two_training.RANKS + on_two_nccl.RANKS},
    "captured_slept": (partial(captured_collectives, sleep_every=100), 2, {}),
    "captured_registered": (captured_collectives, 2, GRAPHS),
    "captured_slept_registered": (partial(captured_collectives, sleep_every=100), 2, GRAPHS),
    "captured_small": (partial(captured_collectives, elements=SMALL), 2, {}),
    "captured_small_slept": (partial(captured_collectives, sleep_every=100, elements=SMALL), 2, {}),
    "registered_early_tracked": (registered_early, 2, TRACKED),
    "registered_early_small_tracked": (registered_early, 2, {**TRACKED, EARLY: str(SMALL)}),
    "ddp_tracked": (ddp, 2, TRACKED),
}


def child(name: str, allocator: str) -> None:
    enable(allocator)
    import torch
    import torch.distributed as dist
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    case, processes, _ = CASES[name]
    print("READY", flush=True)
    if not sys.stdin.readline():
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    job = Job(allocator)
    if processes > 1:
        torch.cuda.set_device(job.rank)
        if case is registered_early:
            elements = int(os.environ.get(EARLY, 1 << 22))
            job.early = [torch.zeros(elements, device=job.rank) for _ in range(8)]
        dist.init_process_group("nccl", device_id=torch.device("cuda", job.rank))
    case(job)
    if processes > 1:
        job.notes["NCCL registered"] = registrations()
    print("RESULT " + json.dumps(job.report()), flush=True)
    if processes > 1:
        torch.cuda.synchronize()
        dist.barrier()
        dist.destroy_process_group()


def begin(name: str, allocator: str, port: int) -> list[subprocess.Popen[str]]:
    """Starts the processes of a turn, which then wait."""
    _, count, more = CASES[name]
    common = {**os.environ, **LOGGED, **more, "NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    running = []
    for rank in range(count):
        ranks = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, __file__, "--child", name, allocator]
        process = subprocess.Popen(
            command, env={**common, **({**ranks, **where} if count > 1 else {})}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
        )
        running.append(process)
    return running


def finish(running: list[subprocess.Popen[str]]) -> tuple[list[dict[str, Any]], str]:
    """Lets them go. The results of the ranks, and what went wrong."""
    end, results, wrong = time.monotonic() + LIMIT_S, [], []
    before = []
    for process in running:
        assert process.stdin and process.stdout
        lines = []
        while (line := process.stdout.readline()) and line != "READY\n":
            lines.append(line)
        before.append("".join(lines))
    for process in running:
        if process.stdin and process.poll() is None:
            process.stdin.write("\n")
            process.stdin.flush()
    for process, text in zip(running, before):
        try:
            said = text + process.communicate(timeout=max(1.0, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            # With the processes that it started.
            os.killpg(process.pid, signal.SIGKILL)
            said = text + process.communicate()[0]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2, help="runs of each case with each allocator [default: 2]")
    parser.add_argument("--only", choices=ALLOCATORS, help="run with this allocator alone")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    names = options.cases or list(CASES)
    allocators = (options.only,) if options.only else ALLOCATORS
    if unknown := [name for name in names if name not in CASES]:
        print(f"jobs_on_two: no case {unknown[0]!r}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    rows, failed = [], []
    todo = [(name, allocator) for name in names for allocator in allocators * options.turns]
    found: dict[str, dict[str, list[list[dict[str, Any]]]]] = {
        name: {allocator: [] for allocator in ALLOCATORS} for name in names
    }
    waiting: collections.deque[list[subprocess.Popen[str]]] = collections.deque()
    begun = 0
    for name, allocator in todo:
        while begun < len(todo) and len(waiting) < 4:
            waiting.append(begin(*todo[begun], 29700 + begun))
            begun += 1
        running = waiting.popleft()
        start = time.monotonic()
        results, wrong = finish(running)
        print(f"{name} {allocator}: {'FAILED' if wrong else 'ok'}, {time.monotonic() - start:.0f} s", flush=True)
        for result in results[:1]:
            print(f"  {result['ms'] or 0:.2f} ms a step, {result['reserved'] / 2**20:.0f} MiB; {result['notes']}", flush=True)
        if wrong:
            print(wrong, flush=True)
            failed.append(f"{name} {allocator}")
        else:
            found[name][allocator].append(sorted(results, key=lambda result: result["rank"]))
    for name in names:
        losses = {tuple(tuple(rank["losses"]) for rank in run) for runs in found[name].values() for run in runs}
        if len(losses) > 1:
            failed.append(f"{name}: losses differ")
        has_losses = any(any(run) for run in losses)
        cells = [name, "none" if not has_losses else "equal" if len(losses) == 1 else "differ"]
        for allocator in ALLOCATORS:
            runs = found[name][allocator]
            held = max((sum(rank["reserved"] for rank in run) for run in runs), default=0)
            asked = max((sum(rank["requested"] for rank in run) for run in runs), default=0)
            times = [run[0]["ms"] for run in runs if run[0]["ms"] is not None]
            cells += [f"{held / 2**20:.0f}", f"{asked / 2**20:.0f}", ", ".join(f"{ms:.2f}" for ms in times)]
        notes = [(allocator, run[0]["notes"]) for allocator in ALLOCATORS for run in found[name][allocator]]
        cells.append("; ".join(f"{allocator}: {note}" for allocator, note in notes if note))
        rows.append(cells)
    heads = ["case", "losses"]
    for allocator in ALLOCATORS:
        heads += [f"{allocator}: reserved, MiB", "allocated, MiB", "ms a step, by turns"]
    print("| " + " | ".join([*heads, "more"]) + " |\n" + "| --- " * (len(heads) + 1) + "|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    for what in failed:
        print("jobs_on_two:", what)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
