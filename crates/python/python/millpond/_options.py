"""The options of a pool by name, for type checkers: what ``enable`` and ``configure`` take."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Literal, Optional, TypedDict, Union


class Options(TypedDict, total=False):
    """Keyword arguments. :class:`millpond.Pool` says what they mean; ``None`` is the default of each."""

    name: Optional[str]
    hard_limit: Optional[int]
    release_threshold: Optional[int]
    headroom: Optional[int]
    reuse: Union[bool, Collection[Literal["follow_event_dependencies", "opportunistic", "internal_dependencies"]], None]
    page_sizes: Optional[tuple[int, int]]
    min_alignment: Optional[int]
    spare: Optional[int]
    record: Union[str, os.PathLike[str], None]
