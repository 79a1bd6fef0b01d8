"""What needs a value that nobody computed: an answer where that is harmless, or one clear message."""

from __future__ import annotations

import functools
import json
import linecache
import math
import statistics
import sys
from typing import Any

import torch

from .counts import ListedUnknown, Unknown, is_counted, is_formatted, listed
from .settings import ALL, ANSWER, ITEM, SELECTED, is_asked_by, line_of_library, module_that_asks, place, refuse, refuse_value

#: Keeps the operations that are put in the place of PyTorch's own.
LIBRARY = torch.library.Library("aten", "IMPL")


#: Equal answers after which a program is taken for one that waits for another.
MOST_ANSWERS = 20_000


def begin() -> None:
    for name, operation in {
        "_local_scalar_dense": scalar,
        "nonzero": nonzero,
        "_unique2": unique,
        "unique_dim": unique_along,
        "unique_consecutive": unique_consecutive,
        "unique_dim_consecutive": unique_along_consecutive,
        "bincount": bincount,
    }.items():
        LIBRARY.impl(name, operation, "CUDA", allow_override=True)
    LIBRARY.impl("_coalesce", coalesce, "SparseCUDA", allow_override=True)
    begin_whole_numbers()
    begin_scaler()
    item = torch.Tensor.item

    def item_of(tensor: Any) -> Any:
        if is_whole_number(tensor):
            where, is_own = place()
            if is_own and of_a_check(where) is None:
                ANSWER.remark(f"{where}: item() of whole numbers is a stand-in that only counts and prints")
                return Unknown(where)
        return item(tensor)

    torch.Tensor.item = item_of
    tolist, cpu = torch.Tensor.tolist, torch.Tensor.cpu

    def list_of(tensor: Any) -> Any:
        where, is_own = place()
        if is_whole_number(tensor) and is_own:
            ANSWER.remark(f"{where}: tolist() of whole numbers has stand-ins that only count and print")
            return listed(tolist(tensor), where)
        return tolist(tensor)

    def on_the_host(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.is_cuda:
            ANSWER.remark(f"{place()[0]}: what comes from the card is zeros")
        return cpu(tensor, *args, **kwargs)

    torch.Tensor.tolist, torch.Tensor.cpu = list_of, on_the_host


def is_whole_number(tensor: Any) -> bool:
    """Whether nobody knows it, and no option answers it."""
    return tensor.is_cuda and ITEM is None and not tensor.is_floating_point() and not tensor.is_complex()


def begin_whole_numbers() -> None:
    """Where a program gives whole numbers of the card to others than PyTorch's operators."""
    number, whole = torch.Tensor.__float__, torch.Tensor.__int__

    def float_of(tensor: Any) -> float:
        if is_whole_number(tensor):
            where, is_own = place()
            # A library asks if something holds by True and False. No size is a float.
            if (is_own or tensor.dtype != torch.bool) and of_a_check(where) is None:
                ANSWER.remark(f"{where}: a value of the card is answered by 1")
                return 1.0
        return number(tensor)

    def int_of(tensor: Any) -> int:
        if not is_whole_number(tensor):
            return whole(tensor)
        if is_formatted():
            return 0
        where, is_own = place()
        if is_own and of_a_check(where) is None and is_counted():
            ANSWER.remark(f"{where}: a value of the card is answered by 1; what becomes a size of it is wrong")
            return 1
        return whole(tensor)

    torch.Tensor.__float__, torch.Tensor.__int__ = float_of, int_of
    for name in ("tensor", "as_tensor"):
        make = of_known(getattr(torch, name))
        setattr(torch, name, make)
        # TorchScript knows its operators by the functions of Python.
        torch.jit._builtins._register_builtin(make, f"aten::{name}")
    coerce = getattr(statistics, "_coerce", None)
    if coerce is not None:
        # A mean of counts and others is one of the others' type.
        statistics._coerce = lambda one, other: coerce(*(int if kind is Unknown and one is not other else kind for kind in (one, other)))
    encode = json.JSONEncoder.default
    json.JSONEncoder.default = lambda encoder, value: 0 if isinstance(value, Unknown) else encode(encoder, value)  # type: ignore


def of_known(make: Any) -> Any:
    """A tensor of numbers, some of which may be stand-ins."""

    def known(value: Any) -> Any:
        if isinstance(value, ListedUnknown):
            value.refused()
        return 1 if isinstance(value, Unknown) else value

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], Unknown):
            args = known(args[0]), *args[1:]
        elif args and isinstance(args[0], (list, tuple)) and any(isinstance(value, Unknown) for value in args[0]):
            args = [known(value) for value in args[0]], *args[1:]
        return make(*args, **kwargs)

    return made


def begin_scaler() -> None:
    """A loss scaler stays at its first scale, since no overflow is found."""
    scaler = torch.amp.grad_scaler.GradScaler
    get_scale = scaler.get_scale

    @functools.wraps(get_scale)
    def scale_of(self: Any) -> float:
        scale = self._scale
        return float(self._init_scale) if scale is not None and scale.is_cuda else get_scale(self)

    scaler.get_scale = scale_of


def scalar(tensor: Any) -> Any:
    """A value of the card for the host."""
    where, is_own = place()
    value: float = 0.0
    of_all: bool | None = None
    if is_asked_by("grad_scaler.py"):
        # No overflow was found: otherwise a loss scaler skips the step.
        return value
    module, line = module_that_asks()
    if module == "torch.optim.lbfgs":
        return of_line_search(tensor, line)
    if tensor.dtype == torch.bool and module.startswith(CHECKS_VALUES) and ("all(" in line or "_is_all_true(" in line):
        return True
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


#: Parts of PyTorch that check what they are given: it is right.
CHECKS_VALUES = ("torch.distributions", "torch.testing")

#: Losses that LBFGS asked for.
LOSSES = 0


def of_line_search(tensor: Any, line: str) -> float | bool:
    """What LBFGS asks: each loss is smaller, each step is kept in its history, and none is the last. So it needs the most memory."""
    global LOSSES
    ANSWER.remark(f"{place()[0]}: LBFGS is taken to go on until max_iter, with one evaluation for each line search")
    if tensor.dtype == torch.bool:
        return "ys > " in line or "abs(gtd_new) <=" in line
    LOSSES += 1
    return 1.0 / LOSSES


#: Functions that ask if there is something wrong: a value, a gap between windows, too few observations.
FIND_NOTHING = ("isnan(", "isinf(", ".istft(", ".cov(", ".corrcoef(")


def of_a_check(where: str) -> float | None:
    """The answer of a line that asks whether values are finite: they are."""
    file, _, number = where.rpartition(":")
    line = linecache.getline(file, int(number)) if number.isdigit() else ""
    if "isfinite(" in line:
        return 1.0
    return 0.0 if any(call in line for call in FIND_NOTHING) else None


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
    return unique_among(tensor, False, return_inverse, return_counts)


def unique_among(tensor: Any, in_order: bool, return_inverse: bool, return_counts: bool) -> Any:
    """What is returned keeps the memory that all elements would take, as PyTorch's own: it is cut to its size afterwards."""
    count, elements = part_of(tensor.numel(), "unique()"), tensor.numel()

    def empty(size: Any, dtype: Any = torch.int64) -> Any:
        return torch.empty(size, dtype=dtype, device=tensor.device)

    whole = tensor.contiguous()
    if not in_order:
        # Sorted with the place of each, if places are asked for; sorting takes another copy of what it sorts.
        whole = empty(elements, tensor.dtype)
        places = empty(elements) if return_inverse else None
        held = [empty(elements) if return_inverse else None, empty(elements * (whole.element_size() + 8 * return_inverse), torch.uint8)]
        del held
    inverse = empty(tensor.shape if return_inverse else (0,))
    if return_inverse:
        # The sums of where another value begins.
        empty(elements)
    values, counts = empty(elements, tensor.dtype), empty(elements if return_counts else 0)
    del whole
    places = None
    return values.resize_(count), inverse, counts.resize_(count) if return_counts else counts


def unique_of(tensor: Any, values: Any, inverse: Any, counts: int) -> Any:
    """What is returned for these sizes."""
    others = (torch.empty(size, dtype=torch.int64, device=tensor.device) for size in (inverse, (counts,)))
    return torch.empty(values, dtype=tensor.dtype, device=tensor.device), *others


def unique_along(tensor: Any, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    shape = list(tensor.shape)
    inverse = (shape[dim],) if return_inverse else (0,)
    count = shape[dim] = part_of(shape[dim], "unique(dim=...)")
    return unique_of(tensor, shape, inverse, count if return_counts else 0)


def unique_along_consecutive(tensor: Any, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Any:
    return unique_along(tensor, dim, True, return_inverse, return_counts)


def unique_consecutive(tensor: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    if dim is not None:
        return unique_along(tensor, dim, True, return_inverse, return_counts)
    return unique_among(tensor, True, return_inverse, return_counts)


def coalesce(tensor: Any) -> Any:
    """A sparse tensor whose entries all stay, in what PyTorch's own takes while it sorts them."""
    indices, values = tensor._indices(), tensor._values()
    entries, dims = values.shape[0], tensor.sparse_dim()
    ANSWER.remark(f"{place()[0]}: coalesce() of a sparse tensor is taken to keep all entries")
    # The flat index of each entry, its old place, and where equal ones begin. While these are sorted, there is a copy of two.
    held = [indices.new_empty(entries) for _ in range(5)]
    del held[3:]
    new_values = torch.empty(values.shape, dtype=values.dtype, device=values.device)
    new_indices = indices.new_empty((dims, entries))
    make = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors
    return make(
        dims, tensor.dense_dim(), tensor.shape, new_indices, new_values, dtype=values.dtype, layout=torch.sparse_coo,
        device=values.device, is_coalesced=True
    )


def bincount(tensor: Any, weights: Any = None, minlength: int = 0) -> Any:
    if minlength == 0 and ITEM is None:
        refuse_value(place()[0], "bincount() without minlength")
    length = max(minlength, int(ITEM or 0) + 1 if minlength == 0 else 1)
    return torch.zeros(length, dtype=torch.int64 if weights is None else weights.dtype, device=tensor.device)
