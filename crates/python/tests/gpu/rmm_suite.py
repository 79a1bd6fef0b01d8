"""RMM's own Python tests, natively and with millpond in the place of ``cudaMalloc``; which of them end otherwise.

    python rmm_suite.py FOLDER [PYTEST ARGUMENTS…]

FOLDER is `python/rmm/rmm/tests` of RMM's repository, at the tag of the version that is installed. Under pytest this file is a
plug-in too: it makes millpond the resource of each test, and of what a test builds over ``rmm.mr.CudaMemoryResource``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_configure() -> None:
    """For the plug-in: before any test is imported."""
    import millpond
    import rmm
    from millpond import _millpond

    resource: Any = type(millpond.rmm.resource(0))
    if issubclass(resource, rmm.mr.CallbackMemoryResource):
        raise pytest.UsageError("there is no library for this RMM")

    class CudaMemoryResource(resource):  # type: ignore[misc]
        def __new__(cls) -> Any:
            return resource.__new__(cls, rmm._cuda.gpu.getDevice(), _millpond.rmm_table())

    CudaMemoryResource.__module__ = rmm.mr.CudaMemoryResource.__module__
    rmm.mr.CudaMemoryResource = CudaMemoryResource


@pytest.fixture(autouse=True)
def millpond_is_the_resource() -> Iterator[None]:
    import millpond

    millpond.rmm.enable()
    yield


def pytest_sessionfinish() -> None:
    import millpond
    from millpond import _millpond

    if not _millpond.devices_in_use():
        return
    stats = millpond.stats(0)
    print(f"\nthe pool gave {stats.allocations:,} blocks, of which {stats.blocks.current:,} are live")
    millpond.pool(0).check()


def outcomes(folder: Path, arguments: list[str], *, plugged: bool) -> dict[str, str]:
    """How each test ended."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as into:
        report = Path(into) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-p", "rmm_suite"] if plugged else []
        variables = {**os.environ, "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run([*command, str(folder), *arguments], env=variables)
        if not report.is_file():
            sys.exit(f"rmm_suite: pytest ended with status {done.returncode} and no report")
        found = {}
        for case in ElementTree.parse(report).iter("testcase"):
            ends = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            found[f"{case.get('classname')}.{case.get('name')}"] = ends[0] if ends else "passed"
        return found


def main() -> int:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        return 2
    folder, arguments = Path(sys.argv[1]).resolve(), sys.argv[2:]
    natively = outcomes(folder, arguments, plugged=False)
    ours = outcomes(folder, arguments, plugged=True)
    for name, found in (("natively", natively), ("with millpond", ours)):
        print(f"{name}: {', '.join(f'{count:,} {end}' for end, count in sorted(Counter(found.values()).items()))}")
    others = {test: ours.get(test, "not run") for test, end in natively.items() if ours.get(test) != end}
    for test, end in others.items():
        print(f"{test}: natively {natively[test]}, with millpond {end}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
