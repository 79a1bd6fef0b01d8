"""Programs with a guard: mistakes that were planted in them are found."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import millpond

PROGRAM = """\
import ctypes
import sys
import millpond

pool = millpond.Pool("host")

def step():
    return pool.allocate(1000)

with millpond.tag("step"):
    block = step()
pool.synchronize()
ctypes.memset(block.ptr + int(sys.argv[1]), 7, 3)
del block
pool.synchronize()
print("went on")
"""


def run(tmp_path: Path, at: int, guard: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, program, str(at)],
        env={**os.environ, "MILLPOND_GUARD": guard},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_finding_names_the_programs_lines(tmp_path: Path) -> None:
    done = run(tmp_path, 1000, "all")
    assert done.returncode == -6, done.stderr
    assert "3 bytes were written behind a block of 1000 bytes of pool" in done.stderr
    assert "at offset 1000, now 07 07 07" in done.stderr
    assert ", under step\n    step (train.py:8)\n    <module> (train.py:11)" in done.stderr
    assert "\n    <module> (train.py:14)" in done.stderr.split("\n  freed ")[1]
    assert "went on" not in done.stdout


def test_a_program_that_counts_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, -3, "all,count")
    assert done.returncode == 0, done.stderr
    assert "3 bytes were written before a block of 1000 bytes" in done.stderr
    assert "went on" in done.stdout


def test_a_right_program_says_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, 0, "all,pages,nan")
    assert done.returncode == 0
    assert done.stdout == "went on\n" and done.stderr == ""


def test_an_unknown_word_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, 1000, "redzone")
    assert done.returncode == 0
    assert "MILLPOND_GUARD is ignored" in done.stderr and "'redzone' is no guard: use all" in done.stderr


def test_an_option_guards_one_pool() -> None:
    guarded, other = millpond.Pool("host", name="one", guard="all,count"), millpond.Pool("host")
    for pool in guarded, other:
        block = pool.allocate(1000)
        pool.synchronize()
        ctypes.memset(block.ptr + 1000, 7, 1)
        del block
        pool.synchronize()
    assert len(guarded.guard_findings()) == 1
    assert "1 byte was written behind a block of 1000 bytes of pool 'one'" in guarded.guard_findings()[0]
    assert other.guard_findings() == []
