"""Whole numbers of the card, which a program may count and print, and may not decide by."""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import sys
from typing import Any

import torch

from .settings import place, refuse_value


def is_formatted() -> bool:
    """Whether a number is asked for by `"%d" % number`, in the code that called the caller of this."""
    frame = sys._getframe(2)
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    # The operators % and %= of Python 3.11 and later.
    return name in ("BINARY_MODULO", "INPLACE_MODULO") or (name == "BINARY_OP" and code[at + 1] in (6, 19))


def is_counted() -> bool:
    """Whether the result of `int(number)` is only added up, divided, or printed, in the code that called the caller.

    Where Python does not know that code's place in a file, the answer is no.
    """
    frame = sys._getframe(2)
    # An instruction is two bytes.
    place = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return place in counted(frame.f_code.co_filename)


@functools.cache
def counted(file: str) -> frozenset[Any]:
    """The places of a file's calls whose results are only added up (`n += int(number)`), divided, or printed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return frozenset()
    taken: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(op=ast.Add() | ast.Div()) | ast.FormattedValue():
                taken.append(node.value)
            case ast.BinOp(op=ast.Div()):
                taken += node.left, node.right
            case ast.Call(func=ast.Name(id="print")):
                taken += node.args
    calls = (call for call in taken if isinstance(call, ast.Call))
    return frozenset((call.lineno, call.end_lineno, call.col_offset, call.end_col_offset) for call in calls)


#: PyTorch's operations that take a number, and make no size of it: their names without underscores.
TAKE_NUMBERS = frozenset(
    "add sub subtract rsub mul multiply div divide truedivide rdiv rtruediv floordivide floordiv rfloordiv remainder fmod rmod pow rpow "
    "floatpower eq ne lt le gt ge clamp clip clampmin clampmax full fulllike newfull fill maskedfill where setitem scalartensor "
    "addcmul addcdiv lerp".split()
)

#: Of these, the ones with a size or an index among what they are given, and its place.
TAKE_SIZES = {"full": 0, "newfull": 1, "setitem": 1}


class Unknown:
    """A whole number that a program counts and prints. What it would decide by is refused."""

    asked_by = "item()"

    def __init__(self, where: Any) -> None:
        # A mean of several makes one of a number.
        self.where = where if isinstance(where, str) else place()[0]

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """With a tensor it makes a tensor, as 1 would: so nothing is divided by 0."""
        name, kwargs = function.__name__.replace("_", ""), kwargs or {}
        size = TAKE_SIZES.get(name)
        if name not in TAKE_NUMBERS or (size is not None and len(args) > size and isinstance(args[size], cls)):
            refuse_value(place()[0], f"{function.__name__}() with a number of item()")
        known = [1 if isinstance(value, cls) else value for value in args]
        return function(*known, **{key: 1 if isinstance(value, cls) else value for key, value in kwargs.items()})

    def same(self, *others: Any) -> Any:
        if any(isinstance(other, torch.Tensor) for other in others):
            # The tensor's own operator is next.
            return NotImplemented
        if any(isinstance(other, (list, tuple, str, bytes)) for other in others):
            # It would repeat them.
            self.refused()
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = same
    __neg__ = __pos__ = __abs__ = __round__ = same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = same

    def divided(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, torch.Tensor) else 0.0

    __truediv__ = __rtruediv__ = divided

    def divided_with_rest(self, *_: Any) -> tuple[Unknown, Unknown]:
        return self, self

    __divmod__ = __rdivmod__ = divided_with_rest

    def as_integer_ratio(self) -> tuple[int, int]:
        return 0, 1

    def __float__(self) -> float:
        # What is computed with it has no division by 0, and no logarithm of 0.
        return 0.0 if is_formatted() else 1.0

    def __int__(self) -> int:
        if is_formatted():
            return 0
        if not is_counted():
            self.refused()
        return 1

    def refused(self, *_: Any) -> Any:
        refuse_value(self.where, f"a branch on {self.asked_by}, or a size from it,")

    __bool__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = refused
    __floor__ = __ceil__ = __trunc__ = refused

    def __repr__(self) -> str:
        return "0"

    def __format__(self, how: str) -> str:
        try:
            return format(0, how)
        except ValueError:
            return format(0.0, how)


class ListedUnknown(Unknown):
    """One of a list. Lists are lengths and indices, so it is no number of an array or of a tensor."""

    asked_by = "tolist()"

    __array__ = Unknown.refused


def listed(values: Any, where: str) -> Any:
    """A list of numbers, in lists or not, with stand-ins."""
    return [listed(value, where) for value in values] if isinstance(values, list) else ListedUnknown(where)
