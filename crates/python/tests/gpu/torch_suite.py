"""PyTorch's own tests, each in a process of its own, with millpond and with PyTorch's allocator.

A test that passes with millpond is run once. Others are run again, one at a time, with both allocators: those are listed that
pass with PyTorch's allocator and not with millpond. Files in ``WHOLE`` run in one process for each allocator.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

WHOLE = ("test_cudagraph_trees.py",)


@dataclass
class Ended:
    """How a run of pytest ended: what it printed, and each test that did not pass or was left out."""

    verdict: str
    text: str

    @property
    def is_good(self) -> bool:
        return self.verdict in ("passed", "skipped")

    def failures(self) -> set[str]:
        return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", self.text, re.MULTILINE))

    def summary(self) -> str:
        return next((line for line in reversed(self.text.splitlines()) if re.search(r"\d+ (passed|failed)", line)), self.verdict)


def pytest(folder: Path, arguments: list[str], *, over_millpond: bool, limit: float) -> Ended:
    environment = {**os.environ, "MILLPOND_TORCH_SUITE": "1" if over_millpond else ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", "--tb=short", *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=max(limit, 1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired as late:
        return Ended("too late", (late.stdout or b"").decode(errors="replace"))
    text = done.stdout.decode(errors="replace")
    if done.returncode == 0:
        return Ended("passed" if re.search(r"\b\d+ passed", text) else "skipped", text)
    return Ended("failed" if done.returncode == 1 else f"ended with {done.returncode}", text)


def collect(folder: Path, file: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", file]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "MILLPOND_TORCH_SUITE": ""})
    tests = [line for line in listed.stdout.splitlines() if "::" in line]
    if not tests:
        sys.exit(f"no test was found in {file}:\n{listed.stdout[-3000:]}{listed.stderr[-3000:]}")
    return tests


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/gpu-torch-tests", description=__doc__)
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", metavar="FILE", help="only files whose name contains it")
    parser.add_argument("--test", action="append", default=[], help="only tests whose name contains it")
    parser.add_argument("--jobs", type=int, default=10, help="processes at a time (%(default)s)")
    parser.add_argument("--limit", type=float, default=90, help="seconds for one test (%(default)s)")
    parser.add_argument("--minutes", type=float, default=30, help="for all of it; what is left then is said (%(default)s)")
    options = parser.parse_intermixed_args()
    ends: float = time.monotonic() + options.minutes * 60

    def left() -> float:
        return ends - time.monotonic()

    log = Path(os.environ["OUT"], "torch-tests.log").open("w") if "OUT" in os.environ else None

    def say(*lines: str) -> None:
        for line in lines:
            print(line, flush=True)
            if log:
                print(line, file=log, flush=True)

    def run(test: str, *, over_millpond: bool) -> Ended:
        if left() < 5:
            return Ended("not run", "")
        return pytest(options.folder, [test], over_millpond=over_millpond, limit=min(options.limit, left()))

    paths = sorted(path.relative_to(options.folder) for path in options.folder.rglob("test_*.py"))
    selected = [path for path in paths if not options.files or any(name in path.name for name in options.files)]
    if not selected:
        sys.exit(f"no file has a name with {' or '.join(options.files)}; there are: {' '.join(path.name for path in paths)}")

    worse = []
    with ThreadPoolExecutor(options.jobs) as pool:
        filters = ["-k", " or ".join(options.test)] if options.test else []
        whole = {
            (path, over_millpond): pool.submit(
                pytest, options.folder, [str(path), *filters], over_millpond=over_millpond, limit=left()
            )
            for path in selected
            if path.name in WHOLE
            for over_millpond in (True, False)
        }
        tests = [test for path in selected if path.name not in WHOLE for test in collect(options.folder, str(path))]
        tests = [test for test in tests if not options.test or any(name in test for name in options.test)]
        first = list(pool.map(lambda test: run(test, over_millpond=True), tests))
        counts = {verdict: sum(ended.verdict == verdict for ended in first) for verdict in ("passed", "skipped")}
        # A test that is skipped over millpond may run with PyTorch's allocator.
        skipped = [test for test, ended in zip(tests, first, strict=True) if ended.verdict == "skipped"]
        natively = pool.map(lambda test: run(test, over_millpond=False), skipped)
        not_run = [test for test, ended in zip(tests, first, strict=True) if ended.verdict == "not run"]
        again = [test for test, ended in zip(tests, first, strict=True) if not ended.is_good and test not in not_run]
        again += [test for test, ended in zip(skipped, natively, strict=True) if ended.verdict == "passed"]
        say(f"{len(tests)} tests over millpond: {counts['passed']} passed, {counts['skipped']} skipped, {len(again)} to repeat")
        for path in {path for path, _ in whole}:
            ours, native = whole[path, True].result(), whole[path, False].result()
            say(f"{path}: millpond: {ours.summary()}; PyTorch's allocator: {native.summary()}")
            worse += [(test, ours) for test in sorted(ours.failures() - native.failures())]
            if ours.verdict not in ("passed", "failed"):
                say(ours.text[-3000:])

    fail_natively = 0
    for test in again:
        if left() < 20:
            not_run.append(test)
            continue
        if run(test, over_millpond=False).verdict != "passed":
            fail_natively += 1
            continue
        ours = run(test, over_millpond=True)
        if ours.verdict != "passed":
            worse.append((test, ours))
            say(f"{test}: {ours.verdict} over millpond, and passed with PyTorch's allocator")
    say(f"{fail_natively} tests do not pass with PyTorch's allocator, either")
    for test, ended in worse:
        say(f"\n== {test}: {ended.verdict} over millpond, and passed with PyTorch's allocator", ended.text[-2500:])
    say("", f"passed with PyTorch's allocator and not over millpond: {len(worse)}", *(f"  {test}" for test, _ in worse))
    if not_run:
        say(f"no time was left for {len(not_run)}; name them with --test, or allow more --minutes: {' '.join(not_run)}")
    sys.exit(bool(worse or not_run))


if __name__ == "__main__":
    main()
