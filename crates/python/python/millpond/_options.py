"""The options of a pool by name, for type checkers: what ``enable`` and ``configure`` take."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal, Optional, TypedDict, Union

if TYPE_CHECKING:
    from ._millpond import Budget

#: A number of bytes, or a text such as ``"8GiB"``.
Size = Union[int, str]


class Options(TypedDict, total=False):
    """Keyword arguments. :class:`millpond.Pool` says what they mean; ``None`` is the default of each."""

    name: Optional[str]
    hard_limit: Optional[Size]
    release_threshold: Optional[Size]
    headroom: Optional[Size]
    reuse: Union[bool, Collection[Literal["follow_event_dependencies", "opportunistic", "internal_dependencies"]], None]
    page_sizes: Optional[tuple[Size, Size]]
    min_alignment: Optional[Size]
    growth_allowance: Optional[Size]
    budget: Optional[Budget]
    accessible_from: Union[Literal["all"], Sequence[int], None]
    record: Union[str, os.PathLike[str], None]
    guard: Optional[str]
