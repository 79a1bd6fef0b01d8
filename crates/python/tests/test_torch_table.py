"""docs/pytorch-functions.md has every public function of PyTorch's that is about memory, and its tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent / "gpu"
PAGE = Path(__file__).parents[3] / "docs/pytorch-functions.md"
#: What of `torch.accelerator` is about memory.
OF_MEMORY = re.compile("memory|cache|Graph")


def sections() -> dict[str, str]:
    """The page's parts by their headings, without lesser headings' lines."""
    parts = re.split(r"(?m)^## (.+)$", PAGE.read_text())
    return dict(zip(parts[1::2], parts[2::2]))


def rows(text: str) -> list[list[str]]:
    """The cells of each row of the tables, without headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 5 for row in cells), cells
    return [row for row in cells if row[1] != "native"]


def named(text: str) -> set[str]:
    """The functions in the first cells; of ``MemPool(use_on_oom=True)`` it is ``MemPool``."""
    return {name.partition("(")[0] for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def public(of: Any) -> set[str]:
    names = getattr(of, "__all__", None) or dir(of)
    return {name for name in names if not name.startswith("_")}


def names_of_tests() -> set[str]:
    trees = (ast.parse(path.read_text()) for path in TESTS.glob("*.py"))
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_row_says_what_each_backend_does() -> None:
    for row in rows(PAGE.read_text()):
        assert all(row[:4]), row


def test_the_tests_in_the_table_are_there() -> None:
    in_table = set(re.findall(r"`(test_\w+)`", "".join(row[4] for row in rows(PAGE.read_text()))))
    assert len(in_table) > 30
    assert in_table - names_of_tests() == set()


@pytest.mark.parametrize("name", ["cuda.memory", "cuda.graphs", "accelerator", "cuda.MemPool", "cuda.CUDAGraph"])
def test_every_public_function_is_in_the_table(name: str) -> None:
    torch = pytest.importorskip("torch")
    of = torch
    for part in name.split("."):
        of = getattr(of, part)
    wanted = public(of)
    if name == "accelerator":
        wanted = {each for each in wanted if OF_MEMORY.search(each)}
    assert wanted - named(sections()[f"torch.{name}"]) == set()
