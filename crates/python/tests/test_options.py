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
        growth_allowance=0,
        budget=millpond.Budget("1GiB"),
        accessible_from="all",
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
        ({"hard_limit": [1]}, "a number of bytes, or a text such as '8GiB', not"),
        ({"headroom": 1.5}, "a number of bytes, or a text such as '8GiB', not 1.5"),
        ({"name": 5}, "a text"),
        ({"page_sizes": 5}, "a pair of sizes"),
        ({"reuse": "opportunistic"}, "True, False, or the names of policies"),
        ({"accessible_from": 5}, "'all', or the numbers of GPUs"),
        ({"record": 5}, "a path"),
        ({"guard": True}, "a text, such as 'all'"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_is_taken(option: dict[str, Any], takes: str) -> None:
    name = next(iter(option))
    with pytest.raises(TypeError, match=f"the option '{name}' takes {takes}"):
        millpond.Pool("sim", **option)


@pytest.mark.parametrize(
    "option",
    [
        {"min_alignment": 3},
        {"page_sizes": (MIB, MIB)},
        {"page_sizes": ("2MiB", "much")},
        {"reuse": ["sometimes"]},
        {"hard_limit": -1},
        {"growth_allowance": "none"},
        {"accessible_from": "none"},
        {"guard": "page"},
    ],
)
def test_a_value_that_makes_no_sense_says_what_would(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(option))}: "):
        millpond.Pool("sim", **option)


def test_sizes_may_be_texts_as_in_the_command() -> None:
    pool = millpond.Pool("sim", capacity="1GiB", hard_limit="100MiB", page_sizes=("2MiB", 8 * MIB), growth_allowance="0")
    assert pool.memory_info()[1] == 1 << 30
    assert pool.allocate("3 MiB").size == 3 * MIB
    assert pool.allocate_address("1k", None) % 512 == 0
    assert pool.allocate(100, align="64KiB").ptr % (64 << 10) == 0
    with pytest.raises(millpond.OutOfMemoryError, match="hard_limit is 100.00 MiB: raise hard_limit"):
        pool.allocate("101MiB")
    assert pool.trim("1GiB") == 0


def test_a_size_that_is_none_names_its_argument() -> None:
    pool = millpond.Pool("sim")
    with pytest.raises(ValueError, match="^size: -1 is negative: expected a number of bytes, or a text such as '8GiB'"):
        pool.allocate(-1)
    with pytest.raises(ValueError, match="^size: 'much' is not a size"):
        pool.allocate("much")
    with pytest.raises(OverflowError, match="^size: .* bytes are more than can be addressed"):
        pool.allocate(1 << 70)
    with pytest.raises(ValueError, match=f"^size: -{1 << 70} is negative"):
        pool.allocate_address(-(1 << 70))
    with pytest.raises(TypeError, match="^size: expected a number of bytes, or a text such as '8GiB', not 1.5"):
        pool.allocate(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^align: -8 is negative"):
        pool.allocate(8, align=-8)
    with pytest.raises(ValueError, match="^keep: -1 is negative"):
        pool.trim(-1)
    with pytest.raises(ValueError, match="^capacity: 'some' is not a size"):
        millpond.Pool("sim", capacity="some")
    with pytest.raises(ValueError, match="^address: -1 is no address"):
        pool.free_address(-1)
    with pytest.raises(ValueError, match="^stream: -1 is no CUstream"):
        pool.allocate(8, -1)
