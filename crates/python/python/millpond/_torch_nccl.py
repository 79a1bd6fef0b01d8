"""NCCL lets other processes map memory that it registered. It cannot follow pages that move."""

from __future__ import annotations

from os import environ
from warnings import warn

#: PyTorch registers all memory of its allocator, as it was when NCCL started.
HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
#: NCCL registers what captured collectives use.
GRAPHS = "NCCL_GRAPH_REGISTER"


def keep_from_registering() -> None:
    """Before NCCL starts.

    NCCL keeps a mapping by its address, for the address range of the first page. Where a range has several pages, or a page
    moved, the other process reads or writes elsewhere.
    """
    environ.setdefault(GRAPHS, "0")
    # What PyTorch takes for true.
    if environ.get(HOOK, "").lower() in ("1", "y", "yes", "t", "true"):
        environ[HOOK] = "0"
        warn(
            f"{HOOK} is switched off: NCCL cannot register memory whose pages move. Use "
            "torch.cuda.MemPool(backend.mem_allocator) for tensors to register (docs/pytorch.md)",
            stacklevel=3,
        )
