"""No module of the package imports another in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import millpond

PACKAGE = Path(millpond.__file__).parent


def at_run_time(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """The package's own imports, but those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and child.level == 1:
            yield child
        yield from at_run_time(child)


def imports() -> dict[str, set[str]]:
    """What each module imports, inside of functions too."""
    names = {path.stem for path in PACKAGE.glob("*.py")}
    found = {}
    for name in names:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        uses = [[each.module] if each.module else [of.name for of in each.names] for each in at_run_time(tree)]
        found[name] = {used for each in uses for used in each if used in names}
    return found


def test_no_module_imports_another_in_a_circle() -> None:
    left = imports()
    assert left["__init__"] >= {"torch", "_errors"}
    while free := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in free:
            del left[name]
    assert not left, left
