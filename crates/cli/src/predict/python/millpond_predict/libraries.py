"""Libraries whose workspaces were not measured: the preloaded library says when one is asked for, and this one knows the line."""

from __future__ import annotations

import ctypes
from typing import Any

from .settings import ANSWER, place
from .values import LIBRARY

#: By the numbers of ``crates/card/src/workspaces.rs``: a name, and what is taken for its workspace.
NAMES = {
    1: ("cuFFT", "as large as the transform"),
    2: ("cuSOLVER", "as large as LAPACK's, or as the matrix"),
    3: ("cuSPARSE", "empty"),
}

#: The largest workspace of each library, by the line that asked for it.
LARGEST: dict[tuple[int, str], int] = {}


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_size_t)
def told(library: int, bytes: int) -> None:
    asked = library, place()[0]
    LARGEST[asked] = max(LARGEST.get(asked, 0), bytes)


def begin() -> None:
    ctypes.CDLL(None).millpond_card_tell(told)
    LIBRARY.impl("_linalg_check_errors", has_no_errors, "CUDA", allow_override=True)


def has_no_errors(info: Any, name: str, *, is_matrix: bool) -> None:
    """Whether a matrix was singular needs values: none was."""
    info.any()


def say() -> None:
    for (library, where), bytes in LARGEST.items():
        name, taken = NAMES[library]
        ANSWER.say_first(
            f"{where}: workspaces of {name} were not measured; they are taken to be {taken} ({bytes:,} bytes at most). What {name} holds "
            "beside PyTorch is not counted"
        )
