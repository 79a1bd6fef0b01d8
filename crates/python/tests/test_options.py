"""A pool's options by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import millpond
import pytest
from millpond._options import Options

MIB = 1 << 20


def test_every_option_is_taken(tmp_path: Path) -> None:
    pool = millpond.Pool(
        "sim",
        capacity=1 << 30,
        name="all",
        hard_limit=100 * MIB,
        release_threshold=0,
        headroom=MIB,
        reuse=["opportunistic", "follow_event_dependencies"],
        page_sizes=(2 * MIB, 8 * MIB),
        min_alignment=1024,
        spare=0,
        record=tmp_path / "all.mprec",
    )
    assert pool.name == "all"
    assert pool.allocate(1).ptr % 1024 == 0
    assert pool.recording is not None and Path(pool.recording.path).exists()
    pool.synchronize()
    assert pool.stats().reserved.current == 0


def test_type_checkers_know_the_options_that_there_are() -> None:
    with pytest.raises(TypeError, match="no option 'x'; it has (.*)$") as refused:
        millpond.configure(x=1)  # type: ignore[call-arg]
    assert str(refused.value).partition("it has ")[2].split(", ") == list(Options.__annotations__)


def test_none_is_the_default() -> None:
    assert millpond.Pool("sim", name=None, hard_limit=None, reuse=None).name == "pool"


def test_a_name_that_is_no_option_lists_those_that_are() -> None:
    with pytest.raises(TypeError, match="no option 'hard_limt'; it has name, hard_limit, release_threshold"):
        millpond.Pool("sim", hard_limt=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no option 'limit'"):
        millpond.configure(limit=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("option", "takes"),
    [
        ({"hard_limit": "1 GiB"}, "a number of bytes"),
        ({"hard_limit": -1}, "a number of bytes"),
        ({"headroom": 1.5}, "a number of bytes"),
        ({"spare": "none"}, "a number of bytes"),
        ({"name": 5}, "a text"),
        ({"page_sizes": 5}, "a pair of bytes"),
        ({"reuse": "opportunistic"}, "True, False, or the names of policies"),
        ({"record": 5}, "a path"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_is_taken(option: dict[str, Any], takes: str) -> None:
    name = next(iter(option))
    with pytest.raises(TypeError, match=f"the option '{name}' takes {takes}"):
        millpond.Pool("sim", **option)


@pytest.mark.parametrize(
    "option", [{"min_alignment": 3}, {"page_sizes": (MIB, MIB)}, {"reuse": ["sometimes"]}]
)
def test_a_value_that_makes_no_sense_says_what_would(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(option))}: "):
        millpond.Pool("sim", **option)
