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


#: Other tests leave a stand-in for a GPU in their process.
SUMMARIES = """
import millpond

print(millpond.memory_summary())
weights, scratch = millpond.Pool("sim", name="weights"), millpond.Pool("host", name="scratch")
block = weights.allocate("3MiB")
print("---")
print(millpond.memory_summary())
del weights, scratch
print("---")
print(millpond.memory_summary())
del block
print("---")
print(millpond.memory_summary())
try:
    millpond.memory_summary(0)
except millpond.DeviceError:
    print("refused")
"""


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_summary_shows_the_pools_of_the_process() -> None:
    said = subprocess.run([sys.executable, "-c", SUMMARIES], capture_output=True, text=True, check=True).stdout
    none, both, held, gone = said.split("---\n")
    assert none.startswith("This process has no pool, and no GPU: ") and none.count("\n") == 1
    assert both.index("pool 'weights' of sim") < both.index("pool 'scratch' of host") and "3.00 MiB" in both
    assert "pool 'weights' of sim" in held and "scratch" not in held, "a block holds its pool"
    assert gone == none + "refused\n"
