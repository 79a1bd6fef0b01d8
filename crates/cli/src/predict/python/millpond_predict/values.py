"""What needs a value that nobody computed: an answer where that is harmless, or one clear message."""

from __future__ import annotations

import linecache
import math
from typing import Any

import torch

from .settings import ALL, ANSWER, ITEM, SELECTED, is_asked_by, line_of_library, place, refuse

#: Keeps the operations that are put in the place of PyTorch's own.
LIBRARY = torch.library.Library("aten", "IMPL")


#: Equal answers after which a program is taken for one that waits for another.
MOST_ANSWERS = 20_000


def begin() -> None:
    for name, operation in {
        "_local_scalar_dense": scalar,
        "nonzero": nonzero,
        "_unique2": unique,
        "bincount": bincount,
    }.items():
        LIBRARY.impl(name, operation, "CUDA", allow_override=True)
    item = torch.Tensor.item

    def item_of(tensor: Any) -> Any:
        if tensor.is_cuda and ITEM is None and not tensor.is_floating_point() and not tensor.is_complex():
            where, is_own = place()
            if is_own:
                ANSWER.remark(f"{where}: item() of whole numbers is a stand-in that only counts and prints")
                return Unknown(where)
        return item(tensor)

    torch.Tensor.item = item_of
    tolist, cpu = torch.Tensor.tolist, torch.Tensor.cpu

    def list_of(tensor: Any) -> Any:
        where, is_own = place()
        if tensor.is_cuda and is_own and ITEM is None and not tensor.is_floating_point():
            refuse_value(where, "tolist() of whole numbers")
        return tolist(tensor)

    def on_the_host(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cuda:
            ANSWER.remark(f"{place()[0]}: what comes from the card is zeros")
        return cpu(tensor, *args, **kwargs)

    torch.Tensor.tolist, torch.Tensor.cpu = list_of, on_the_host


def refuse_value(where: str, what: str) -> None:
    refuse(
        f"{where}: {what} needs a value that only a GPU would compute; say --item VALUE to answer all such questions, or change "
        "the line"
    )


def scalar(tensor: Any) -> Any:
    """A value of the card for the host."""
    where, is_own = place()
    value: float = 0.0
    of_all: bool | None = None
    if is_asked_by("grad_scaler.py"):
        # No overflow was found: otherwise a loss scaler skips the step.
        return value
    if not tensor.is_floating_point() and (finite := of_a_check(where)) is not None:
        value = finite
    elif ITEM is not None:
        value = ITEM
    elif tensor.is_floating_point():
        value = 1.0
    elif is_own:
        refuse_value(where, "a branch on a tensor, or a size from one,")
    elif (of_all := of_all_values()) is not None:
        value = float(of_all)
    if of_all is None and not is_asked_by("_tensor_str.py"):
        answered = f"{where}: a value of the card is answered by {value:g}"
        ANSWER.remark(answered)
        if ANSWER.remarks[answered] > MOST_ANSWERS and not tensor.is_floating_point():
            refuse(f"{answered}, again and again: the program waits for another value; say --item VALUE, or change the line")
    if tensor.dtype == torch.bool:
        return bool(value)
    return float(value) if tensor.is_floating_point() else int(value)


def of_a_check(where: str) -> float | None:
    """The answer of a line that asks whether values are finite: they are."""
    file, _, number = where.rpartition(":")
    line = linecache.getline(file, int(number)) if number.isdigit() else ""
    if "isfinite(" in line:
        return 1.0
    return 0.0 if "isnan(" in line or "isinf(" in line else None


def of_all_values() -> bool | None:
    """The answer where a library asks if something holds for all values: the one that needs more memory."""
    where, line = line_of_library()
    if ".all()" not in line and "_all(" not in line and "torch.all(" not in line:
        return None
    if "packed" in line or "position" in line:
        # Positions have no jumps: a program that packs several texts into one says so.
        return True
    if "mask" in line:
        ANSWER.remark(f"{where} asks if a mask has no gaps: it has some, which needs more memory; --item 1 says that it has none")
        return False
    # The program is run with the other answer, too.
    ANSWER.figures["asked"] = where
    return ALL


def part_of(elements: int, what: str) -> int:
    """How many elements a mask selects."""
    # A tensor is printed.
    if is_asked_by("_tensor_str.py"):
        return 0
    where, _ = place()
    if SELECTED is None:
        refuse(
            f"{where}: {what} has a size that depends on values; say --selected PART, such as 0.5, for the part of the elements "
            "that are selected"
        )
    ANSWER.remark(f"{where}: {what} is taken to select {SELECTED:g} of the elements")
    return math.ceil(elements * (SELECTED or 0.0))


def nonzero(tensor: Any) -> Any:
    count = part_of(tensor.numel(), "a mask or nonzero()")
    return torch.empty((tensor.dim(), count), dtype=torch.int64, device=tensor.device).t()


def unique(tensor: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    count = part_of(tensor.numel(), "unique()")
    sizes = count, tensor.numel() if return_inverse else 0, count if return_counts else 0
    dtypes = tensor.dtype, torch.int64, torch.int64
    return tuple(torch.empty(size, dtype=dtype, device=tensor.device) for size, dtype in zip(sizes, dtypes))


def bincount(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    if minlength == 0 and ITEM is None:
        refuse_value(place()[0], "bincount() without minlength")
    length = max(minlength, int(ITEM or 0) + 1 if minlength == 0 else 1)
    return torch.zeros(length, dtype=torch.int64 if weights is None else weights.dtype, device=tensor.device)


class Unknown:
    """A whole number that a program counts and prints. What it would decide by is refused."""

    def __init__(self, where: str) -> None:
        self.where = where

    def same(self, *_: Any) -> Unknown:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = same
    __neg__ = __pos__ = __abs__ = __floordiv__ = __mod__ = same

    def as_float(self, *_: Any) -> float:
        return 0.0

    __float__ = __truediv__ = __rtruediv__ = as_float

    def refused(self, *_: Any) -> Any:
        refuse_value(self.where, "a branch on item(), or a size from it,")

    __bool__ = __index__ = __int__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = refused

    def __repr__(self) -> str:
        return "0"

    def __format__(self, how: str) -> str:
        try:
            return format(0, how)
        except ValueError:
            return format(0.0, how)
