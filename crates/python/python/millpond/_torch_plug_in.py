"""The plug-in's hooks: whether this PyTorch calls them as they are written (`src/hooks/torch.rs`).

PyTorch takes the address of each as a number, and compares nothing. Some get a `std::function`, whose layout is written by
hand (`src/hooks/std_function.rs`). So they are handed over only where PyTorch's own header declares them as it did in the
versions that were looked at.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

HEADER = "torch/csrc/cuda/CUDAPluggableAllocator.h"

#: The versions of PyTorch that declare the hooks in this way.
VERSIONS = "2.9 to 2.15"
DECLARED = "8d6b392a58c323ab6100011b42da83170370e139b8a3751a58689341f732a83e"


def declared(header: str) -> str:
    """What tells the hooks that a header declares from others: their names, and what they get and return."""
    declarations = re.findall(r"void set_\w+\([^;]*;|std::function<[^;]*alloc_fn_;|std::function<[^;]*free_fn_;", header)
    return hashlib.sha256("".join("".join(each.split()) for each in declarations).encode()).hexdigest()


def why_not(include: Path) -> str | None:
    """Why the hooks cannot be handed over to the PyTorch with these headers, as the end of a sentence."""
    try:
        header = (include / HEADER).read_text()
    except OSError as error:
        return f"its header, which declares them, cannot be read ({error})"
    if declared(header) != DECLARED:
        return f"it declares them otherwise than PyTorch {VERSIONS} did, for which they were written"
    return None
