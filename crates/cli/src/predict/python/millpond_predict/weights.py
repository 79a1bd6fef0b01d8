"""Large weights on the CPU, before they go to the card: nobody looks at their values, so none are made, and they take no memory."""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Elements from which on a tensor of the CPU is large.
LARGE = 1 << 18


def begin() -> None:
    from torch.nn import init

    for name in dir(init):
        fill = getattr(init, name)
        if name.endswith("_") and not name.startswith("_") and callable(fill):
            setattr(init, name, unless_large(fill))
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, unless_large(getattr(torch.Tensor, name)))
    torch.Tensor.to = converted(torch.Tensor.to)
    for name, dtype in {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32}.items():
        setattr(torch.Tensor, name, converted(getattr(torch.Tensor, name), dtype))


def is_large(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() >= LARGE


def unless_large(fill: Any) -> Any:
    """Random values of a large tensor stay what they are."""

    @functools.wraps(fill)
    def filled(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if is_large(tensor) else fill(tensor, *args, **kwargs)

    return filled


def converted(convert: Any, to: Any = None) -> Any:
    """Another type of a large tensor is made without its values."""

    @functools.wraps(convert)
    def run(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        is_followed = torch.is_grad_enabled() and tensor.requires_grad
        if is_large(tensor) and tensor.is_floating_point() and not is_followed:
            try:
                device, dtype = (None, to) if to is not None else torch._C._nn._parse_to(*args, **kwargs)[:2]
            except (TypeError, RuntimeError):
                # As another tensor, which is rare.
                return convert(tensor, *args, **kwargs)
            if dtype is not None and dtype.is_floating_point and dtype != tensor.dtype:
                return torch.empty_like(tensor, dtype=dtype, device=device or tensor.device, requires_grad=False)
        return convert(tensor, *args, **kwargs)

    return run
