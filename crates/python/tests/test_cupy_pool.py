"""The methods of CuPy's pools, over the pools that libraries share. CuPy itself is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import fakes
cupy = fakes.install_cupy()
import millpond, pytest
from millpond import _millpond

MIB = 1 << 20
budgets = [millpond.Budget((1 << 64) - 1) for _ in range(2)]
for ordinal, budget in enumerate(budgets):
    _millpond.stand_in(ordinal, millpond.Pool("host", capacity="256MiB", budget=budget), budget)

millpond.cupy.enable(pinned=True)
pool, pinned = millpond.cupy.MemoryPool(), millpond.cupy.PinnedMemoryPool()
assert cupy.allocator is millpond.cupy.allocate and cupy.pinned_allocator is millpond.cupy.allocate_pinned

memory = pool.malloc(5 * MIB)
assert memory.mem.device_id == 0 and memory.ptr == memory.mem.owner.ptr
assert (pool.used_bytes(), pool.total_bytes(), pool.free_bytes()) == (5 * MIB, 6 * MIB, MIB)
assert pool.used_bytes() + pool.free_bytes() == pool.total_bytes()
del memory
assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
pool.free_all_blocks()
assert (pool.total_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (0, 0, 0)
pool.malloc(MIB)
pool.free_all_free()
pool.malloc(MIB)
pool.free_all_blocks(stream=fakes.NullStream())
assert pool.total_bytes() == 0

assert pool.get_limit() == 0
pool.set_limit(size=32 * MIB)
assert pool.get_limit() == 32 * MIB
kept = pool.malloc(20 * MIB)
for error in (cupy.cuda.memory.OutOfMemoryError, millpond.OutOfMemoryError, MemoryError):
    with pytest.raises(error, match="20.00 MiB requested, but the pools of its budget hold"):
        pool.malloc(20 * MIB)
cupy.current = 1
with pytest.warns(RuntimeWarning, match="CuPy uses memory of two GPUs"):
    assert (pool.get_limit(), pool.used_bytes(), pool.malloc(64 * MIB).mem.device_id) == (0, 0, 1)
pool.set_limit(fraction=0.5)
assert pool.get_limit() == 128 * MIB
cupy.current = 0
assert pool.get_limit() == 32 * MIB
pool.set_limit()
assert pool.get_limit() == 0 and pool.malloc(64 * MIB)
for wrong in ({{"size": 1, "fraction": 0.5}}, {{"fraction": 1.5}}, {{"size": -1}}):
    with pytest.raises(ValueError):
        pool.set_limit(**wrong)

host = pinned.malloc(3 * MIB)
assert pinned.n_free_blocks() == 1 and millpond.pool(0, memory="pinned").stats().requested.current == 3 * MIB
del host
pinned.free_all_blocks()
assert pinned.n_free_blocks() == 0
"""


def test_a_program_written_for_cupys_pools_finds_their_methods() -> None:
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
