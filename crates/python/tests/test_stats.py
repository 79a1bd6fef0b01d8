"""Figures as dicts, in JSON, pickled and in notebooks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import millpond
import pytest

MIB = 1 << 20


def has_gpu() -> bool:
    try:
        millpond.Pool(0)
    except millpond.DeviceError:
        return False
    return True


@pytest.fixture
def stats() -> millpond.Stats:
    pool = millpond.Pool("sim", name="counted")
    kept = pool.allocate(3 * MIB)
    pool.allocate(MIB).free()
    found = pool.stats()
    del kept
    return found


def test_stats_go_to_json_and_come_back(stats: millpond.Stats) -> None:
    figures = json.loads(json.dumps(stats.as_dict()))
    assert figures["requested"] == {"current": 3 * MIB, "high": 4 * MIB}
    assert figures["calls"]["memory"] == stats.calls.memory
    assert figures["fragmentation"] == stats.fragmentation
    assert millpond.Stats(figures) == stats


def test_stats_have_every_figure_in_their_dict(stats: millpond.Stats) -> None:
    for of in (stats, stats.calls, stats.reserved):
        names = [name for name in dir(type(of)) if not name.startswith("_") and name != "as_dict"]
        assert sorted(of.as_dict()) == sorted(names)


def test_stats_pickle(stats: millpond.Stats) -> None:
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert pickle.loads(pickle.dumps(stats.reserved)) == stats.reserved
    assert pickle.loads(pickle.dumps(stats.calls)) == stats.calls


def test_a_dict_that_lacks_a_figure_is_refused(stats: millpond.Stats) -> None:
    figures = stats.as_dict()
    del figures["hits"]
    with pytest.raises(ValueError, match="no figure 'hits': pass what as_dict\\(\\) gave"):
        millpond.Stats(figures)


def test_notebooks_show_a_table(stats: millpond.Stats) -> None:
    shown = stats._repr_html_()
    assert shown.startswith("<table>") and shown.endswith("</table>")
    assert "<tr><th>requested</th><td>3.00 MiB</td><td>4.00 MiB</td></tr>" in shown
    assert "<th>allocations</th><td>2</td>" in shown


def test_the_summary_shows_the_pools_of_the_process_where_there_is_no_gpu() -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    before = millpond.memory_summary()
    first, second = millpond.Pool("sim", name="weights"), millpond.Pool("host", name="scratch")
    block = first.allocate(3 * MIB)
    text = millpond.memory_summary()
    assert text.index("pool 'weights' of sim") < text.index("pool 'scratch' of host")
    assert "3.00 MiB" in text
    del first, second
    assert "pool 'weights'" in millpond.memory_summary(), "a block holds it"
    del block
    assert millpond.memory_summary() == before
    with pytest.raises(millpond.DeviceError):
        millpond.memory_summary(0)


def test_a_process_without_pool_and_gpu_says_so_in_a_sentence() -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    program = "import millpond; print(millpond.memory_summary())"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.startswith("This process has no pool, and no GPU: ") and said.count("\n") == 1
