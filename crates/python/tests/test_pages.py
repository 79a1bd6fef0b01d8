"""The programs on the pages run. Those that need a GPU are in gpu/test_pages_on_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages

PROGRAMS = pages.programs(gpu=False)


def test_there_are_programs_on_the_pages() -> None:
    assert len(PROGRAMS) >= 3 and len(pages.programs(gpu=True)) >= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_a_page_runs(name: str, tmp_path: Path) -> None:
    pages.run(PROGRAMS[name], tmp_path)
