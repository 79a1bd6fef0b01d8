"""One of several ranks, without the others: PyTorch's process group that sends nothing."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import sys
from typing import Any

import torch

from .settings import ANSWER, RANK, RANKS, REAL, place, refuse

def begin() -> None:
    if REAL or not torch.distributed.is_available():
        return
    if os.environ.get("TORCHELASTIC_RUN_ID"):
        refuse("a launcher such as torchrun waits for all ranks: name --ranks N, and the script itself after --, as in -- python train.py")
    import torch.distributed as dist

    if RANKS:
        begin_this_rank_alone()
    begin_for_real = dist.init_process_group
    arguments = inspect.signature(begin_for_real)

    @functools.wraps(begin_for_real)
    def begin_group(*args: Any, **kwargs: Any) -> None:
        given = arguments.bind(*args, **kwargs).arguments
        if not RANKS and "nccl" not in (given.get("backend") or "nccl"):
            begin_for_real(*args, **kwargs)
            return
        if dist.is_initialized():
            return
        if RANKS and multiprocessing.parent_process() is not None:
            refuse(
                f"{place()[0]}: init_process_group() is in a process that the program began, and --ranks begins the program once for each "
                f"of {RANKS} ranks already: let it take RANK, LOCAL_RANK and WORLD_SIZE from its environment, and begin no process; or "
                "name as many --ranks as it begins by torch.multiprocessing.spawn"
            )
        size = RANKS or max(given.get("world_size", 0), 0) or int(os.environ.get("WORLD_SIZE") or 0)
        # One rank by itself needs no other.
        if not RANKS and size != 1:
            refuse(
                f"{place()[0]}: init_process_group() is for ranks that nobody began: name --ranks {size or 'N'}, and let the program "
                "take RANK, LOCAL_RANK and WORLD_SIZE from its environment, or begin them by torch.multiprocessing.spawn"
            )
        have_gradients_sent_to_nobody()
        begin_for_real(backend="fake", store=fake_store(), rank=RANK, world_size=size)
        ANSWER.figures["ranks"] = size

    dist.init_process_group = begin_group
    torch.distributed.distributed_c10d.init_process_group = begin_group


class Done:
    """What ``torch.multiprocessing`` returns for processes that nobody waits for yet."""

    processes: tuple[Any, ...] = ()

    def join(self, *_args: Any, **_kwargs: Any) -> bool:
        return True


def begin_this_rank_alone() -> None:
    """A program that begins its ranks itself gets the one that it is to be: the command begins it once for each."""
    import torch.multiprocessing as package

    module = sys.modules["torch.multiprocessing.spawn"]
    begin_for_real = module.start_processes

    @functools.wraps(begin_for_real)
    def begin(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *others: Any, **named: Any) -> Any:
        if nprocs != RANKS or multiprocessing.parent_process() is not None:
            return begin_for_real(fn, args, nprocs, join, *others, **named)
        fn(RANK, *args)
        return None if join else Done()

    module.start_processes = package.start_processes = begin


def fake_store() -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


@functools.cache
def have_gradients_sent_to_nobody() -> None:
    from torch.nn.parallel import DistributedDataParallel

    build = DistributedDataParallel.__init__

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        # Otherwise the ranks tell each other the order of their gradients, by values on the card.
        build(self, *args, **{**kwargs, "find_unused_parameters": True, "static_graph": False})
        DistributedDataParallel.register_comm_hook(self, None, alone)

    DistributedDataParallel.__init__ = built
    # The others would say which parameters they have.
    torch.distributed._verify_params_across_processes = lambda *_args, **_kwargs: None


def alone(_state: Any, bucket: Any) -> Any:
    """The sum of a bucket's gradients over the ranks: there are no others."""
    sum: Any = torch.futures.Future()
    sum.set_result(bucket.buffer())
    return sum


# DDP looks at annotations, and takes none that are text.
alone.__annotations__ = {}
