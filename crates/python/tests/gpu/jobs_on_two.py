"""Jobs on two GPUs with PyTorch's own allocator and with millpond's native interface, by turns.

    scripts/gpu-python jobs_on_two [--turns N] [--only ALLOCATOR] [CASE…]

Each case runs twice with each allocator, in processes of its own, with one seed. The table compares losses to the last bit, the
memory that both GPUs reserved at most, and the median time of a step.
"""

from __future__ import annotations

import sys
from functools import partial

import on_several_memory
import on_several_nccl
import on_several_training
import turns
from on_several_nccl import captured_collectives, reached_early, registered_early
from on_several_training import ddp
from turns import Case

GRAPHS = {"NCCL_GRAPH_REGISTER": "1"}
# PyTorch registers all tensors with NCCL.
TRACKED = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
# A tensor within one page, which NCCL lets other processes map.
SMALL = 1 << 18
CASES: dict[str, Case] = {
    **{case.__name__: Case(case) for case in on_several_training.ALONE + on_several_memory.ALONE},
    **{case.__name__: Case(case, 2) for case in on_several_training.RANKS + on_several_nccl.RANKS},
    "registered_early": Case(registered_early, 2, before=reached_early),
    "captured_slept": Case(partial(captured_collectives, sleep_every=100), 2),
    "captured_registered": Case(captured_collectives, 2, GRAPHS),
    "captured_slept_registered": Case(partial(captured_collectives, sleep_every=100), 2, GRAPHS),
    "captured_small": Case(partial(captured_collectives, elements=SMALL), 2),
    "captured_small_slept": Case(partial(captured_collectives, sleep_every=100, elements=SMALL), 2),
    "registered_early_tracked": Case(registered_early, 2, TRACKED, reached_early),
    "registered_early_small_tracked": Case(registered_early, 2, TRACKED, partial(reached_early, elements=SMALL)),
    "ddp_tracked": Case(ddp, 2, TRACKED),
}

if __name__ == "__main__":
    sys.exit(turns.main(__file__, __doc__, CASES, ("native", "millpond")))
