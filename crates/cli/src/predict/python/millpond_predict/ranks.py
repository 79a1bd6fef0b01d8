"""One of several ranks, without the others: PyTorch's process group that sends nothing."""

from __future__ import annotations

from typing import Any

import torch

from .settings import ANSWER, RANK, RANKS, REAL


def begin() -> None:
    if REAL or not RANKS or not torch.distributed.is_available():
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from torch.nn.parallel import DistributedDataParallel

    build = DistributedDataParallel.__init__

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        # Otherwise the ranks tell each other the order of their gradients, by values on the card.
        build(self, *args, **{**kwargs, "find_unused_parameters": True, "static_graph": False})
        DistributedDataParallel.register_comm_hook(self, None, alone)

    DistributedDataParallel.__init__ = built
    begin_for_real = dist.init_process_group

    def begin_group(*_args: Any, **_kwargs: Any) -> None:
        if dist.is_initialized():
            return
        begin_for_real(backend="fake", store=FakeStore(), rank=RANK, world_size=RANKS)
        ANSWER.figures["ranks"] = RANKS

    # The others would say which parameters they have.
    dist._verify_params_across_processes = lambda *_args, **_kwargs: None
    dist.init_process_group = begin_group
    torch.distributed.distributed_c10d.init_process_group = begin_group


def alone(_state: Any, bucket: Any) -> Any:
    """The sum of a bucket's gradients over the ranks: there are no others."""
    sum: Any = torch.futures.Future()
    sum.set_result(bucket.buffer())
    return sum


# DDP looks at annotations, and takes none that are text.
alone.__annotations__ = {}
