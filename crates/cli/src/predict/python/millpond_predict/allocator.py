"""What a program asks of PyTorch's allocator, and is left out: PyTorch's own runs as it comes, and replays try the others."""

from __future__ import annotations

import os
from typing import Any

from .settings import ANSWER

#: Where PyTorch reads its allocator's settings.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

EXPANDABLE = "expandable_segments:True"


def leave_environment_out() -> None:
    """Before PyTorch reads it. Some settings call the driver, which is not there."""
    for variable in VARIABLES:
        settings = os.environ.pop(variable, "")
        if settings:
            say_left_out(f"{variable}={settings}", settings)


def say_left_out(what: str, settings: str) -> None:
    words = {word.strip().replace(" ", "") for word in settings.split(",")}
    if words == {EXPANDABLE}:
        ANSWER.remark(f"{what}: the row expandable is what the program needs so; the others are without it")
    else:
        ANSWER.remark(
            f"{what} is left out. What the program needs with it: --record FILE, and then millpond replay FILE --alloc-conf {settings}"
        )


def begin(torch: Any) -> None:
    """What a program sets while it runs."""
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, lambda settings: say_left_out(str(settings), str(settings)))

    def limit(fraction: float, *_: Any, **__: Any) -> None:
        ANSWER.remark(f"set_per_process_memory_fraction({fraction:g}) is left out: what the program needs is told without a limit")

    torch.cuda.set_per_process_memory_fraction = torch.cuda.memory.set_per_process_memory_fraction = limit


def begin_millpond(module: Any) -> None:
    """Of the package's module ``millpond.torch``: its pool is one of the allocators that are tried."""

    def enable(**_options: Any) -> None:
        ANSWER.remark("the program enables Millpond: the row millpond is what it needs so; PyTorch's own allocator ran here")

    module.enable = enable
    module.sleep = lambda *_args, **_kwargs: 0
    module.wake = lambda *_args, **_kwargs: None
