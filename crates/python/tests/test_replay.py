"""`millpond.replay`: what the command says, as Python's objects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import millpond
import pytest

MIB = 1 << 20


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "job.mprec"
    pool = millpond.Pool("sim", name="recorded", record=path)
    blocks = [pool.allocate(size * MIB) for size in (4, 8, 16)]
    del blocks[1]
    blocks.append(pool.allocate(12 * MIB))
    del blocks
    pool.stop_recording()
    return path


def test_it_is_what_the_command_writes(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "millpond", "replay", str(recording), "--allocator=millpond", f"--json={out}"]
    subprocess.run(command, check=True, capture_output=True)
    (told,) = millpond.replay(recording, allocator="millpond")
    (written,) = json.loads(out.read_text())
    assert told.keys() == written.keys()
    ours, theirs = told["allocators"][0], written["allocators"][0]
    assert ours["allocator"] == "millpond" and ours["peak_requested"] == 32 * MIB
    same = [name for name in ours if "seconds" not in name and "per_s" not in name]
    for name in ("allocator", "peak_requested", "peak_reserved", "needs", "cards"):
        assert name in same and ours[name] == theirs[name]


def test_options_are_the_commands(recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    (told,) = millpond.replay(
        recording,
        allocator=["millpond", "caching"],
        card=["4090", "24GiB"],
        page_sizes=("2MiB", 8 * MIB),
        context="1GiB",
        report=page,
    )
    assert [row["allocator"] for row in told["allocators"]] == ["millpond", "caching"]
    assert len(told["allocators"][0]["cards"]) == 2
    assert page.read_text().startswith("<!")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", ""), "nothing is printed"
    (told,) = millpond.replay(recording, allocator="millpond", capacity=16 * MIB, context=0)
    assert told["allocators"][0]["oom"] is not None


def test_what_cannot_be_replayed_is_an_error_that_says_why(recording: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.pickle"):
        millpond.replay(tmp_path / "none.pickle")
    other = tmp_path / "other.pickle"
    other.write_text("a text")
    with pytest.raises(millpond.RecordingError, match="other.pickle"):
        millpond.replay(other)
    with pytest.raises(ValueError, match="--allocator"):
        millpond.replay(recording, allocator="best")
    with pytest.raises(ValueError, match="--verify needs real memory"):
        millpond.replay(recording, verify=True)
    with pytest.raises(TypeError, match="alocator"):
        millpond.replay(recording, alocator="millpond")  # type: ignore[call-arg]
