"""CuPy's own tests that want several GPUs, natively and over the pools; which of them end otherwise.

    python cupy_suite.py FOLDER [NAME…]

FOLDER has `tests` of CuPy's repository, at the tag of the version that is installed. NAME: only files whose path contains it. Each
file runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIMIT_S, AT_ONCE = 100, 12


def child(allocator: str, arguments: list[str]) -> int:
    import pytest

    if allocator == "millpond":
        import millpond

        millpond.cupy.enable()
    return int(pytest.main(arguments))


def outcomes(folder: Path, file: Path, allocator: str) -> dict[str, str]:
    """How each test of a file ended."""
    with tempfile.TemporaryDirectory() as into:
        report = Path(into) / "report.xml"
        options = ["-q", "--tb=line", "-m", "multi_gpu", "-p", "no:cacheprovider", f"--junitxml={report}", f"--rootdir={folder}"]
        options += ["-c", str(settings(Path(into)))]
        command = [sys.executable, __file__, "--child", allocator, *options, str(file)]
        variables = {**os.environ, "CUPY_CACHE_DIR": into}
        try:
            done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return {f"{file}": "hangs"}
        found = {}
        if report.is_file():
            for case in ElementTree.parse(report).iter("testcase"):
                ends = [child for child in case if child.tag in ("failure", "error", "skipped")]
                said = " / ".join((ends[0].get("message") or "").split("\n")[:6]) if ends else ""
                found[f"{case.get('classname')}.{case.get('name')}"] = f"{ends[0].tag}: {said[:300]}" if ends else "passed"
        if done.returncode not in (0, 5) and not any(is_broken(end) for end in found.values()):
            last = " / ".join((done.stderr or done.stdout).splitlines()[-2:])
            found[f"{file}"] = f"status {done.returncode}: {last}"
        return found


def kind(end: str | None) -> str:
    return (end or "missing").split(":")[0]


def is_broken(end: str) -> bool:
    return kind(end) in ("failure", "error")


def settings(folder: Path) -> Path:
    path = folder / "pytest.ini"
    path.write_text("[pytest]\nmarkers =\n    multi_gpu\n    slow\n    thread_unsafe\n    network\n    flaky\n")
    return path


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], sys.argv[3:])
    if len(sys.argv) < 2 or not (Path(sys.argv[1]) / "tests").is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    folder, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    files = sorted(path for path in folder.glob("tests/**/test_*.py") if "multi_gpu(" in path.read_text())
    files = [path for path in files if not names or any(name in str(path) for name in names)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        started = [
            {allocator: threads.submit(outcomes, folder, file, allocator) for allocator in ("native", "millpond")}
            for file in files
        ]
        found: dict[str, dict[str, str]] = {"native": {}, "millpond": {}}
        for each in started:
            for allocator, future in each.items():
                found[allocator].update(future.result())
    for allocator, ends in found.items():
        print(f"{allocator}: {len(ends)} tests: {dict(Counter(map(kind, ends.values())))}")
    tests = sorted({*found["native"], *found["millpond"]})
    different = [test for test in tests if kind(found["native"].get(test)) != kind(found["millpond"].get(test))]
    for test in different:
        print(f"{test}: natively {found['native'].get(test)}, with millpond {found['millpond'].get(test)}")
    for test in tests:
        if test not in different and kind(found["native"][test]) not in ("passed", "skipped"):
            print(f"{test}: both ways {found['native'][test]}")
    print(f"cupy_suite: {len(different)} tests end otherwise")
    return 1 if different or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
