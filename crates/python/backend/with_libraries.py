"""Builds the package as maturin does, with the libraries that ``millpond run`` and ``millpond predict`` preload.

pip calls these functions (PEP 517). In a checkout, ``scripts/run-library`` builds the libraries first.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import maturin
from maturin import (  # noqa: F401
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

SCRIPT = Path(__file__).parents[3] / "scripts" / "run-library"


def build_wheel(*arguments: Any, **named: Any) -> str:
    build_libraries()
    return str(maturin.build_wheel(*arguments, **named))


def build_editable(*arguments: Any, **named: Any) -> str:
    build_libraries()
    return str(maturin.build_editable(*arguments, **named))


def build_libraries() -> None:
    if SCRIPT.exists():
        # pip reads the name of the wheel from standard output.
        subprocess.run([str(SCRIPT)], check=True, stdout=2)
