"""Four processes with a pool on each of four GPUs, and a budget for each GPU that they share; what `top` and `metrics` say of them.

    python budgets_on_four.py [MILLPOND]

BUDGETS_ON_HOST=1 takes the host in the place of each GPU.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ON_HOST = os.environ.get("BUDGETS_ON_HOST") == "1"
GPUS, PROCESSES = int(os.environ.get("JOBS_RANKS", "4")), 4
PAGE = 2 << 20
LIMIT = 128 * PAGE
COMMAND = sys.argv[1] if len(sys.argv) > 1 else ".gpu/millpond"


def child() -> None:
    """Obeys lines: `take GPU COUNT`, `fill GPU`, `drop GPU`; answers how many blocks it has of the GPU."""
    import millpond

    names = sys.argv[2:]
    budgets = [millpond.Budget(LIMIT, name=name) for name in names]
    pools = [
        millpond.Pool("host" if ON_HOST else gpu, budget=budget, name=f"pool-{gpu}") for gpu, budget in enumerate(budgets)
    ]
    blocks: list[list[Any]] = [[] for _ in pools]
    print("ready", flush=True)
    for line in sys.stdin:
        what, gpu, *count = line.split()
        pool, held = pools[int(gpu)], blocks[int(gpu)]
        try:
            for _ in range(int(count[0]) if count else 10 * LIMIT // PAGE if what == "fill" else 0):
                held.append(pool.allocate(PAGE))
            said = ""
        except millpond.OutOfMemoryError as error:
            said = str(error)
        if what == "drop":
            held.clear()
            pool.synchronize()
        print(json.dumps({"blocks": len(held), "error": said}), flush=True)


class Process:
    def __init__(self, names: list[str]) -> None:
        self.running = subprocess.Popen(
            [sys.executable, __file__, "--child", *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.running.pid

    def ready(self) -> None:
        assert self.running.stdout and self.running.stdout.readline() == "ready\n", "the process did not begin"

    def ask(self, line: str) -> dict[str, Any]:
        assert self.running.stdin and self.running.stdout
        self.running.stdin.write(line + "\n")
        self.running.stdin.flush()
        return dict(json.loads(self.running.stdout.readline()))


@contextmanager
def processes() -> Iterator[tuple[list[Process], list[str]]]:
    names = [f"four-{os.getpid()}-{gpu}" for gpu in range(GPUS)]
    all_ = [Process(names) for _ in range(PROCESSES)]
    try:
        for each in all_:
            each.ready()
        yield all_, names
    finally:
        for each in all_:
            each.running.kill()
            each.running.wait()
        for name in names:
            subprocess.run([COMMAND, "budget", name, "--remove"], capture_output=True)


def command(*arguments: str, **variables: str) -> str:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=30, env={**os.environ, **variables})
    assert done.returncode == 0, (arguments, done.returncode, done.stderr)
    return done.stdout


def pools_of(pids: list[int]) -> dict[tuple[int, str], dict[str, Any]]:
    """What `top` says of these processes' pools, by process and pool."""
    looked = json.loads(command("top", "--once", "--json"))
    return {
        (process["pid"], pool["name"]): pool
        for process in looked["processes"] if process["pid"] in pids for pool in process["pools"]
    }


def the_sum_never_exceeds_the_limit() -> str:
    with processes() as (all_, names):
        # On its own GPU each process takes twice what the others do; then all fill all GPUs.
        for gpu in range(GPUS):
            for at, each in enumerate(all_):
                count = LIMIT // PAGE // PROCESSES // 2 * (2 if at == gpu else 1)
                assert each.ask(f"take {gpu} {count}")["blocks"] == count
        for gpu in range(GPUS):
            answers = [each.ask(f"fill {gpu}") for each in all_]
            assert sum(answer["blocks"] for answer in answers) == LIMIT // PAGE, (gpu, answers)
            errors = [answer["error"] for answer in answers]
            assert all("hold" in error and "process" in error for error in errors), errors
        held = [sum(pool["reserved"]["current"] for (_, name), pool in found.items() if name == f"pool-{gpu}")
                for found in [pools_of([each.pid for each in all_])] for gpu in range(GPUS)]
        assert held == [LIMIT] * GPUS, held
        # What one lets go, another one gets, on that GPU alone.
        for gpu in range(GPUS):
            giver, taker = all_[gpu % PROCESSES], all_[(gpu + 1) % PROCESSES]
            before = taker.ask(f"take {gpu} 0")["blocks"]
            gone = giver.ask(f"take {gpu} 0")["blocks"]
            giver.ask(f"drop {gpu}")
            answer = taker.ask(f"fill {gpu}")
            assert answer["blocks"] == before + gone, (gpu, before, gone, answer)
        # So does what a killed one held.
        gone = [all_[3].ask(f"take {gpu} 0")["blocks"] for gpu in range(GPUS)]
        before = [all_[0].ask(f"take {gpu} 0")["blocks"] for gpu in range(GPUS)]
        os.kill(all_[3].pid, signal.SIGKILL)
        all_[3].running.wait()
        wanted = [was + more for was, more in zip(before, gone)]
        end, after = time.monotonic() + 10, before
        while after != wanted and time.monotonic() < end:
            after = [all_[0].ask(f"fill {gpu}")["blocks"] for gpu in range(GPUS)]
        assert after == wanted, (before, gone, after)
        return f"{GPUS} GPUs, {LIMIT >> 20} MiB each, held by {PROCESSES} processes to the byte; passed on, and after kill -9"


def top_and_metrics_name_all_pools() -> str:
    with processes() as (all_, names):
        pids = [each.pid for each in all_]
        for at, each in enumerate(all_):
            for gpu in range(GPUS):
                each.ask(f"take {gpu} {1 + at + 4 * gpu}")
        wanted = {
            (pid, f"pool-{gpu}"): (1 + at + 4 * gpu) * PAGE for at, pid in enumerate(pids) for gpu in range(GPUS)
        }
        found = {which: pool["requested"]["current"] for which, pool in pools_of(pids).items()}
        assert found == wanted, (found, wanted)
        text = command("metrics")
        said = {}
        for line in text.splitlines():
            match = re.match(r"millpond_pool_requested_bytes\{pid=\"(\d+)\".*,pool=\"([^\"]*)\".*\} (\d+)", line)
            if match and int(match[1]) in pids:
                said[int(match[1]), match[2]] = int(match[3])
        assert said == wanted, (said, wanted)
        for gpu, name in enumerate(names):
            assert name in command("budget") and all(str(pid) in command("budget", name) for pid in pids), name
            assert name in text, f"metrics does not say {name}"
        began = time.perf_counter()
        command("metrics")
        took = time.perf_counter() - began
        devices = {pool["device"] for pool in pools_of(pids).values()}
        return f"{len(wanted)} pools on {sorted(devices)}; metrics took {1e3 * took:.0f} ms"


def uuids() -> list[str]:
    said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return re.findall(r"UUID: GPU-([0-9a-f-]+)", said)


SEEN = """
import json, subprocess, sys, os, millpond
pool = millpond.Pool(0, name="seen")
block = pool.allocate(64 << 20)
said = json.loads(subprocess.run([sys.argv[1], "top", "--once", "--json"], capture_output=True, text=True).stdout)
print([one["uuid"] for each in said["processes"] if each["pid"] == os.getpid() for one in each["pools"]][0])
"""


def visible_devices() -> str:
    """The first GPU that a program sees is the one that `CUDA_VISIBLE_DEVICES` names first."""
    if ON_HOST:
        return "not on the host"
    all_ = uuids()
    orders = [str(GPUS - 1), "1,0", f"GPU-{all_[1]}"]
    wanted = [all_[GPUS - 1], all_[1], all_[1]]
    found = []
    for order in orders:
        variables = {**os.environ, "CUDA_VISIBLE_DEVICES": order}
        done = subprocess.run([sys.executable, "-c", SEEN, COMMAND], capture_output=True, text=True, timeout=60, env=variables)
        assert done.returncode == 0, (order, done.stderr)
        found.append(done.stdout.strip().removeprefix("GPU-"))
    assert found == wanted, (found, wanted)
    counts = [len(re.findall(r"^cuda:\d", command("info", CUDA_VISIBLE_DEVICES=order), re.M)) for order in ("", orders[0], "1,0")]
    assert counts == [0, 1, 2], counts
    return f"orders {orders} begin with {found}; info shows {counts}"


CASES: tuple[Callable[[], str], ...] = (the_sum_never_exceeds_the_limit, top_and_metrics_name_all_pools, visible_devices)


def main() -> int:
    failed = 0
    for case in CASES:
        try:
            print(f"{case.__name__}: ok: {case()}", flush=True)
        except Exception as error:
            failed += 1
            print(f"{case.__name__}: FAILED: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child()
    else:
        sys.exit(main())
