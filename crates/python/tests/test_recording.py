"""Recordings and snapshots of pools."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import millpond
from millpond._shared import summary, write_snapshot

MIB = 1 << 20


def load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


def test_a_recording_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.mprec"
    pool = millpond.Pool("sim")
    pool.start_recording(path)
    assert pool.recording is not None and Path(pool.recording.path) == path
    with millpond.tag("step"):
        blocks = [pool.allocate(MIB) for _ in range(5)]
    del blocks
    status = pool.stop_recording()
    assert status is not None and status.events >= 10 and status.dropped == 0 and status.failure is None
    assert status.bytes == path.stat().st_size
    assert pool.recording is None and pool.stop_recording() is None
    run = [sys.executable, "-m", "millpond", "replay", str(path)]
    replayed = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "5 blocks" in replayed.stdout


def test_call_sites_are_the_lines_of_the_program(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\n"
        "import millpond\n"
        "pool = millpond.Pool('sim')\n"
        "def step():\n"
        "    kept = []\n"
        "    for _ in range(3):\n"
        "        kept.append(pool.allocate(1 << 20))\n"
        "    return kept\n"
        "pool.start_recording(sys.argv[1], call_sites=True)\n"
        "kept = step()\n"
        "pool.stop_recording()\n"
    )
    path, peak = tmp_path / "run.mprec", tmp_path / "peak.folded"
    subprocess.run([sys.executable, program, path], check=True)
    run = [sys.executable, "-m", "millpond", "replay", str(path), "--json", "-", "--export-stacks", str(peak)]
    replayed = subprocess.run(run, capture_output=True, text=True, check=True)
    (held,) = json.loads(replayed.stdout)[0]["live_at_peak"]["sites"]
    assert held["blocks"] == 3, "one line is one site"
    assert peak.read_text() == f"<module> (train.py:10);step (train.py:7) {3 * MIB}\n"


def test_a_recording_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    pool = millpond.Pool("sim")
    try:
        pool.start_recording(tmp_path / "missing" / "run.mprec")
    except millpond.RecordingError as error:
        assert "cannot record to" in str(error)
    else:
        raise AssertionError("recorded to a folder that is not there")


def test_a_snapshot_has_what_is_live(tmp_path: Path) -> None:
    pool = millpond.Pool("sim")
    kept = [pool.allocate(MIB), pool.allocate(3 * MIB)]
    pool.allocate(7 * MIB).free()
    path = tmp_path / "live.pickle"
    write_snapshot(pool, path)
    blocks = [block for segment in load(path)["segments"] for block in segment["blocks"]]
    live = {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}
    assert live == {block.ptr: block.size for block in kept}
    assert pool.recording is None


def test_a_snapshot_of_a_recorded_pool_has_what_happened(tmp_path: Path) -> None:
    pool = millpond.Pool("sim", record=tmp_path / "run.mprec")
    first = pool.allocate(5 * MIB)
    address = first.ptr
    first.free()
    kept = pool.allocate(MIB)
    path = tmp_path / "all.pickle"
    write_snapshot(pool, path)
    (events,) = [trace for trace in load(path)["device_traces"] if trace]
    actions = [(event["action"], event["size"]) for event in events if event["addr"] == address]
    assert actions[:2] == [("alloc", 5 * MIB), ("free_requested", 5 * MIB)]
    assert pool.recording is not None, "it goes on"
    kept.free()


def test_a_snapshot_of_an_empty_pool_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.pickle"
    write_snapshot(millpond.Pool("sim"), path)
    assert load(path) == {"segments": [], "device_traces": [[]]}


def test_tags_stand_inside_each_other_and_can_be_used_again() -> None:
    tag = millpond.tag("outer")
    with tag:
        with tag:
            pass
    with tag:
        pass


def test_a_summary_has_the_figures() -> None:
    pool = millpond.Pool("sim", name="summed")
    kept = pool.allocate(MIB)
    text = summary(pool)
    assert text.startswith("pool 'summed' of sim\n")
    assert "requested       1.00 MiB    1.00 MiB" in text
    assert "reserved        2.00 MiB    2.00 MiB" in text
    kept.free()
