"""One of several ranks, without the others: PyTorch's process group that sends nothing."""

from __future__ import annotations

from typing import Any

import torch

from .settings import ANSWER, RANK, RANKS


def begin() -> None:
    if not RANKS or not torch.distributed.is_available():
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    begin_for_real = dist.init_process_group

    def begin_group(*_args: Any, **_kwargs: Any) -> None:
        if dist.is_initialized():
            return
        begin_for_real(backend="fake", store=FakeStore(), rank=RANK, world_size=RANKS)
        ANSWER.figures["ranks"] = RANKS

    dist.init_process_group = begin_group
    torch.distributed.distributed_c10d.init_process_group = begin_group
