"""The programs on the pages that need a GPU run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import pages  # noqa: E402

pytestmark = pytest.mark.gpu
PROGRAMS = pages.programs(gpu=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_a_page_runs(name: str, tmp_path: Path) -> None:
    for library in ("torch", "cupy"):
        if f"import {library}\n" in PROGRAMS[name]:
            pytest.importorskip(library)
    pages.run(PROGRAMS[name], tmp_path)
