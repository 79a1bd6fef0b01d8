"""The ``millpond`` command: ``python -m millpond``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from ._millpond import run_command


def main() -> int:
    """Runs the command with the program's arguments, and returns its exit status."""
    # The command runs without Python: Ctrl-C ends it as it ends any program, not when Python comes to look.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What `millpond run` and `millpond predict` preload lies in the package, and never beside the interpreter.
    for name in ("run", "card"):
        library = Path(__file__).parent / "_run" / f"libmillpond_{name}.so"
        os.environ.setdefault(f"MILLPOND_{name.upper()}_LIBRARY", str(library))
    return run_command(["millpond", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
