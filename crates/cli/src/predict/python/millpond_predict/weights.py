"""Large weights on the CPU, before they go to the card: nobody looks at their values, so none are made, and they take no memory.

Data that a program reads or computes keeps its values. A storage that was left without values is marked for as long as it lives.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

#: Elements from which on a tensor of the CPU is large.
LARGE = 1 << 18

#: Functions of modules that fill weights, by the names that they mostly have.
FILLERS = {"reset_parameters", "_reset_parameters", "init_weights", "_init_weights"}

#: The attribute that marks a storage. PyTorch keeps the attributes of a storage while any tensor uses it.
MARK = "_millpond_has_no_values"


def begin() -> None:
    from torch.nn import init

    for name in dir(init):
        fill = getattr(init, name)
        if name.endswith("_") and not name.startswith("_") and callable(fill):
            setattr(init, name, unless_large(fill))
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, unless_large(getattr(torch.Tensor, name), is_weight))
    torch.Tensor.to = converted(torch.Tensor.to)
    for name, dtype in {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32}.items():
        setattr(torch.Tensor, name, converted(getattr(torch.Tensor, name), dtype))


def is_large(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() >= LARGE


def mark(tensor: Any) -> Any:
    """Notes that nobody gave the tensor values."""
    try:
        setattr(tensor.untyped_storage(), MARK, True)
    except (NotImplementedError, RuntimeError):
        # It has no storage of its own, as a sparse one.
        pass
    return tensor


def is_marked(tensor: Any) -> bool:
    try:
        return getattr(tensor.untyped_storage(), MARK, False)
    except (NotImplementedError, RuntimeError):
        return False


def is_weight(tensor: Any) -> bool:
    """Whether a tensor that is filled is a weight. Random data of a program may decide what it does."""
    if isinstance(tensor, torch.nn.Parameter) or is_marked(tensor):
        return True
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in FILLERS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def unless_large(fill: Any, is_left_out: Any = lambda _: True) -> Any:
    """Random values of a large weight are not made."""

    @functools.wraps(fill)
    def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if is_large(tensor) and is_left_out(tensor):
            return mark(tensor)
        return fill(tensor, *args, **kwargs)

    return filled


def converted(convert: Any, to: Any = None) -> Any:
    """Another type of a large tensor without values is made without any."""

    @functools.wraps(convert)
    def run(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_followed = torch.is_grad_enabled() and tensor.requires_grad
        if is_large(tensor) and tensor.is_floating_point() and not is_followed and is_marked(tensor):
            try:
                device, dtype = (None, to) if to is not None else torch._C._nn._parse_to(*args, **kwargs)[:2]
            except (TypeError, RuntimeError):
                # As another tensor, which is rare.
                return convert(tensor, *args, **kwargs)
            if dtype is not None and dtype.is_floating_point and dtype != tensor.dtype:
                return mark(torch.empty_like(tensor, dtype=dtype, device=device or tensor.device, requires_grad=False))
        return convert(tensor, *args, **kwargs)

    return run
