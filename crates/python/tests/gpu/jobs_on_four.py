"""Jobs on four GPUs with PyTorch's own allocator, with its expandable segments and with millpond's native interface, by turns.

    scripts/gpu-python jobs_on_four [--turns N] [--only ALLOCATORS] [--seconds S] [CASE…]

Without names all cases run. `memory` stands for the five whose memory and times are compared, `right` for the others.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import turns
from on_several_nccl import captured_collectives, evicted, slept
from on_several_resume import resumable, resumed
from on_several_training import ddp, ddp_offloaded, experts, fsdp2, stages, tensor_parallel
from turns import Case

RANKS = int(os.environ.get("JOBS_RANKS", "4"))
MEMORY = ("ddp", "fsdp2", "tensor_parallel", "experts", "stages")
CASES: dict[str, Case] = {
    **{case.__name__: Case(case, RANKS) for case in (ddp, fsdp2, tensor_parallel, experts, stages)},
    "resumed": Case(partial(resumed, script=__file__, ranks=RANKS)),
    **{case.__name__: Case(case, RANKS) for case in (ddp_offloaded, captured_collectives, slept, evicted)},
    "captured_slept": Case(partial(captured_collectives, sleep_every=100), RANKS),
    "resumable": Case(resumable, RANKS, is_named_only=True),
}
GROUPS = {"memory": MEMORY, "right": tuple(name for name, case in CASES.items() if name not in MEMORY and not case.is_named_only)}

if __name__ == "__main__":
    sys.argv[1:] = [name for argument in sys.argv[1:] for name in GROUPS.get(argument, (argument,))]
    sys.exit(turns.main(__file__, __doc__, CASES, ("native", "expandable", "millpond")))
