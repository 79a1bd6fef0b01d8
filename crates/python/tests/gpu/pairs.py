"""What a pair of allocation and free costs on this GPU, beside other allocators. Prints a Markdown table of medians.

python pairs.py [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

OURS, HOST = "millpond", "mimalloc"
CHURN = "512B-4MiB"
#: Bytes of the block whose pair by mimalloc is the reference.
MARK_BYTES = 512


def measure(device: str) -> list[dict[str, Any]]:
    """The rows of `millpond bench`."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "rows.json")
        suites = ["--suite", "latency,churn", "--device", device]
        command = [sys.executable, "-m", "millpond", "bench", *suites, "--json", str(out)]
        subprocess.run(command, check=True, stdout=sys.stderr)
        rows: list[dict[str, Any]] = json.loads(out.read_text())
    return rows


def span(figures: list[float]) -> str:
    """From the least to the most."""
    low, high = min(figures), max(figures)

    def shown(ns: float) -> str:
        return f"{ns:.1f}" if ns < 100 else f"{ns:.0f}"

    return f"{shown(low)} ns" if shown(low) == shown(high) else f"{shown(low)} to {shown(high)} ns"


def line(work: str, rows: list[dict[str, Any]], figure: str) -> None:
    """A line of the table: ours, mimalloc's, and at each size the best of the others."""
    def of(allocator: str) -> list[float]:
        return [row[figure] for row in rows if row["allocator"] == allocator]

    others: dict[int, float] = {}
    for row in rows:
        if row["allocator"] not in (OURS, HOST):
            others[row["bytes"]] = min(row[figure], others.get(row["bytes"], row[figure]))
    marks = [row[figure] for row in rows if row["allocator"] == HOST and row["bytes"] == MARK_BYTES]
    print(f"| {work} | {span(of(OURS))} | {span(marks) if marks else ''} | {span(list(others.values()))} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="pairs", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="as of `millpond bench` (cuda)")
    given = parser.parse_args()
    rows = measure(given.device)
    pairs = [row for row in rows if row["suite"] == "latency" and row["mode"] == "pair"]
    churn = [row for row in rows if row["suite"] == "churn" and row["mode"] == CHURN]
    print(time.strftime("%Y-%m-%d %H:%MZ\n", time.gmtime()))
    print("| | Millpond | mimalloc, 512 B | the best of the others |")
    print("| --- | --- | --- | --- |")
    line("a pair, 512 B to 64 MiB", pairs, "p50_ns")
    line("free and allocate, 1,000 live of 512 B to 4 MiB", churn, "p50_ns")


if __name__ == "__main__":
    main()
