"""The programs on the pages for Python's users."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGES = Path(__file__).parents[3] / "docs"
#: Stands before a program that `scripts/gpu-python` runs.
NEEDS_A_GPU = "<!-- needs a GPU -->\n"


def programs(*, gpu: bool) -> dict[str, str]:
    """The fenced blocks of Python, by page and number."""
    found = {}
    for page in ("python.md", "pytorch.md"):
        text = (PAGES / page).read_text()
        for number, match in enumerate(re.finditer(r"(?m)^```python\n(.*?)^```$", text, re.DOTALL)):
            if text[: match.start()].endswith(NEEDS_A_GPU) == gpu:
                found[f"{page}-{number}"] = match[1]
    return found


def run(program: str, folder: Path) -> None:
    """Runs a program in a process and a folder of its own."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
