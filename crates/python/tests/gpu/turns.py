"""Cases that run by turns with each allocator, in processes of their own: what `jobs_on_two.py` and `jobs_on_four.py` stand on.

The processes of the next turns import PyTorch while a turn runs, and wait for a line. A case that fails, hangs or differs is named at
the end, and the status is 1 then. `JOBS_ON_CPU=1` tries the cases without GPUs, with gloo.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from on_several import NCCL_LOG, ON_CPU, Job, enable, registrations

#: Seconds for the imports of a turn, and for its work. Seconds that the other ranks have once one of them failed.
IMPORTS_S, LIMIT_S, GRACE_S = 90, 120 if ON_CPU else 40, 3
#: Turns whose imports run ahead, the present one among them.
AHEAD = 1 if ON_CPU else 3
PR_SET_PDEATHSIG = 1
LOGGED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "REG", "NCCL_DEBUG_FILE": NCCL_LOG}


@dataclass(frozen=True)
class Case:
    """What a case does, its processes, further variables of the environment, and what each process does before NCCL starts."""

    work: Callable[[Job], None]
    processes: int = 1
    variables: dict[str, str] = field(default_factory=dict)
    before: Callable[[Job], None] | None = None
    #: It runs only where it is named.
    is_named_only: bool = False


def child(cases: dict[str, Case], name: str, allocator: str) -> None:
    """What each process of a case does. It ends with who began it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    enable(allocator)
    import torch
    import torch.distributed as dist
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel

    case = cases[name]
    print("READY", flush=True)
    if not sys.stdin.readline():
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    job = Job(allocator)
    if case.processes > 1:
        if ON_CPU:
            dist.init_process_group("gloo")
        else:
            torch.cuda.set_device(job.rank)
            if case.before:
                case.before(job)
            dist.init_process_group("nccl", device_id=torch.device("cuda", job.rank))
    case.work(job)
    if case.processes > 1 and not ON_CPU:
        job.notes["NCCL registered"] = registrations()
    print("RESULT " + json.dumps(job.report()), flush=True)
    if case.processes > 1:
        job.synchronize()
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Turn:
    """The processes of a case with one allocator. They begin at once, and do their work once `finish` is called."""

    def __init__(
        self, script: str, name: str, allocator: str, processes: int, variables: dict[str, str] | None = None
    ) -> None:
        common = {**os.environ, **LOGGED, **(variables or {}), "NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        common |= {"PYTHONUNBUFFERED": "1"}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
        self.running: list[tuple[subprocess.Popen[str], Any]] = []
        for rank in range(processes):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
            # Its end is where each write goes, wherever it is read.
            said = tempfile.NamedTemporaryFile("a")
            process = subprocess.Popen(
                [sys.executable, script, "--child", name, allocator], env={**common, **place, **ranks}, text=True,
                stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT, process_group=0,
            )
            self.running.append((process, said))

    def finish(self, limit: float = LIMIT_S) -> tuple[list[dict[str, Any]], str]:
        """Lets them go. The results of the ranks, and what went wrong."""
        end = time.monotonic() + IMPORTS_S
        while any(process.poll() is None and "READY\n" not in text(said) for process, said in self.running):
            if time.monotonic() > end:
                self.kill()
                return [], f"the imports took more than {IMPORTS_S} s"
            time.sleep(0.02)
        for process, _ in self.running:
            assert process.stdin
            try:
                process.stdin.write("\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass
        end, wrong = time.monotonic() + limit, []
        while None in (states := [process.poll() for process, _ in self.running]):
            # A status is None while the process runs, and 0 if all is well.
            if any(states) and end > time.monotonic() + GRACE_S:
                end = time.monotonic() + GRACE_S
            if time.monotonic() > end:
                if not any(states):
                    wrong.append(f"still ran after {limit:.0f} s")
                self.kill()
                break
            time.sleep(0.01)
        results = []
        for rank, (process, said) in enumerate(self.running):
            lines = text(said).splitlines()
            found = [line for line in lines if line.startswith("RESULT ")]
            results += [json.loads(line[7:]) for line in found]
            if process.wait() != 0 or not found:
                wrong.append(f"rank {rank}: status {process.returncode}:\n" + "\n".join(lines[-15:]))
            said.close()
        return results, "\n".join(wrong)

    def kill(self) -> None:
        """Ends them, with the processes that they started."""
        for process, _ in self.running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def text(file: Any) -> str:
    return Path(file.name).read_text(errors="replace")


def losses_of(runs: Iterable[list[dict[str, Any]]]) -> set[tuple[tuple[str, ...], ...]]:
    return {tuple(tuple(rank["losses"]) for rank in run) for run in runs}


def verdict(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """Of the losses of a case, by allocator."""
    losses = losses_of(run for runs in found.values() for run in runs)
    if not any(any(run) for run in losses):
        return "none"
    if len(losses) == 1:
        return "equal"
    return "native's differ from run to run" if len(losses_of(found.get("native", []))) > 1 else "DIFFER"


def row(name: str, found: dict[str, list[list[dict[str, Any]]]]) -> list[str]:
    cells = [name, verdict(found)]
    for runs in found.values():
        held = max((sum(rank["reserved"] for rank in run) for run in runs), default=0)
        asked = max((sum(rank["requested"] for rank in run) for run in runs), default=0)
        times = [run[0]["ms"] for run in runs if run[0]["ms"] is not None]
        cells += [f"{held / 2**20:.0f}", f"{asked / 2**20:.0f}", ", ".join(f"{ms:.2f}" for ms in times)]
    notes = [(allocator, run[0]["notes"]) for allocator, runs in found.items() for run in runs]
    return [*cells, "; ".join(f"{allocator}: {note}" for allocator, note in notes if note)]


class Ended(Exception):
    """Somebody ends this program: what was found is still said."""


def end(_signal: int, _frame: Any) -> None:
    raise Ended


def all_turns(
    script: str, cases: dict[str, Case], names: list[str], allocators: tuple[str, ...], options: argparse.Namespace
) -> tuple[dict[str, list[str]], list[str]]:
    """The rows of the table, and what failed."""
    last = time.monotonic() + options.seconds
    failed: list[str] = []
    # Where the time does not suffice, each case has run once rather than some of them twice.
    todo = [(name, allocator) for _ in range(options.turns) for name in names for allocator in allocators]
    found: dict[str, dict[str, list[list[dict[str, Any]]]]] = {
        name: {allocator: [] for allocator in allocators} for name in names
    }
    waiting: collections.deque[Turn] = collections.deque()
    begun = at = 0
    signal.signal(signal.SIGTERM, end)
    try:
        for at, (name, allocator) in enumerate(todo):
            if time.monotonic() > last:
                raise Ended
            while begun < len(todo) and len(waiting) < AHEAD:
                case = cases[todo[begun][0]]
                waiting.append(Turn(script, *todo[begun], case.processes, case.variables))
                begun += 1
            start = time.monotonic()
            results, wrong = waiting[0].finish()
            waiting.popleft()
            print(f"{name} {allocator}: {'FAILED' if wrong else 'ok'}, {time.monotonic() - start:.0f} s", flush=True)
            for result in results[:1]:
                print(f"  {result['ms'] or 0:.2f} ms a step, {result['reserved'] / 2**20:.0f} MiB; {result['notes']}", flush=True)
            if wrong:
                print(wrong, flush=True)
                failed.append(f"{name} {allocator}")
            else:
                found[name][allocator].append(sorted(results, key=lambda result: result["rank"]))
            if at + 1 == len(todo) or todo[at + 1][0] != name:
                print(f"  losses of {name}: {verdict(found[name])}", flush=True)
    except Ended:
        failed.append(f"not run, the time was over: {', '.join(f'{name} {by}' for name, by in todo[at:])}")
    finally:
        for turn in waiting:
            turn.kill()
    return {name: row(name, by) for name, by in found.items() if any(by.values())}, failed


def main(script: str, about: str | None, cases: dict[str, Case], allocators: tuple[str, ...]) -> int:
    if sys.argv[1:2] == ["--child"]:
        child(cases, *sys.argv[2:4])
        return 0
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2, help="runs of each case with each allocator [default: 2]")
    parser.add_argument("--only", metavar="ALLOCATORS", help=f"with these alone, by commas: {', '.join(allocators)}")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no turn later than this")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    options = parser.parse_args()
    names = options.cases or [name for name, case in cases.items() if not case.is_named_only]
    allocators = tuple(options.only.split(",")) if options.only else allocators
    if unknown := [name for name in names if name not in cases]:
        print(f"no case {unknown[0]!r}; there are {', '.join(cases)}", file=sys.stderr)
        return 2
    rows, failed = all_turns(script, cases, names, allocators, options)
    failed += [f"{name}: losses differ" for name, cells in rows.items() if cells[1] == "DIFFER"]
    heads = ["case", "losses"]
    for allocator in allocators:
        heads += [f"{allocator}: reserved, MiB", "allocated, MiB", "ms a step, by turns"]
    print("| " + " | ".join([*heads, "more"]) + " |\n" + "| --- " * (len(heads) + 1) + "|")
    for cells in rows.values():
        print("| " + " | ".join(cells) + " |")
    for what in failed:
        print(f"{os.path.basename(script)}:", what)
    return 1 if failed else 0
