"""Whatever users can call says what it does: to `help()`, and to editors, in the same words."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millpond


def public(of: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    """The members that users meet, with their paths, and theirs."""
    for name in names:
        member = inspect.getattr_static(of, name)
        if isinstance(of, types.ModuleType) and getattr(member, "__module__", of.__name__) != of.__name__:
            if not (of is millpond and name in millpond.__all__):
                continue
        if isinstance(member, (str, bool, int, type(None))) and not isinstance(member, type):
            continue
        if inspect.ismodule(member) and not member.__name__.startswith("millpond"):
            continue
        yield name, member
        if inspect.isclass(member):
            own = [each for each in vars(member) if not each.startswith("_")]
        elif inspect.ismodule(member):
            own = [each for each in vars(member) if not each.startswith("_")]
        else:
            continue
        for path, inner in public(member, own):
            yield f"{name}.{path}", inner


def test_every_public_member_says_what_it_does() -> None:
    members = dict(public(millpond, millpond.__all__))
    assert {"Pool.allocate", "Stats.requested", "Level.high", "torch.enable", "replay"} <= members.keys()
    without = [path for path, member in members.items() if not (getattr(member, "__doc__", None) or "").strip()]
    assert without == []


def words(text: str) -> list[str]:
    return text.replace("``", "`").split()


def test_editors_are_told_the_same_as_help() -> None:
    extension: Any = millpond._millpond
    stub = Path(millpond.__file__).parent / "_millpond.pyi"
    differs = []
    for node in ast.parse(stub.read_text()).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name.startswith("_"):
            continue
        found = getattr(extension, node.name)
        told = [(node.name, node, found)]
        if isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            told += [(f"{node.name}.{each.name}", each, getattr(found, each.name, None)) for each in inner]
        for path, each, member in told:
            said = ast.get_docstring(each)
            if said is not None and words(said) != words(member.__doc__ or ""):
                differs.append(path)
    assert differs == []
