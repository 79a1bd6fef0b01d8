"""One budget for many processes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path

import millpond
import pytest

MIB = 1 << 20


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # Of this test alone: another one's budget of the name may still be there, with its limit.
    return f"python-{os.getpid()}-{secrets.token_hex(4)}"


def test_pools_share_a_budget_of_this_process() -> None:
    budget = millpond.Budget("64MiB")
    first, second = (millpond.Pool("sim", capacity="1GiB", budget=budget) for _ in range(2))
    block = first.allocate("40MiB")
    with pytest.raises(millpond.OutOfMemoryError, match="hold 40.00 MiB of 64.00 MiB"):
        second.allocate("40MiB")
    assert (budget.limit, budget.held, budget.tenants()) == (64 * MIB, 40 * MIB, [])
    assert repr(budget) == "<millpond.Budget: 40.00 MiB of 64.00 MiB held>"
    budget.set(limit="80MiB")
    second.allocate("40MiB")
    del block


def test_processes_share_a_named_budget(name: str) -> None:
    assert millpond.Budget.find(name) is None
    budget = millpond.Budget("64MiB", name=name, claim="48MiB", patience=0)
    pool = millpond.Pool("sim", capacity="1GiB", budget=budget)
    program = f"""
        import millpond, sys
        budget = millpond.Budget.find({name!r})
        pool = millpond.Pool("sim", capacity="1GiB", budget=budget)
        block = pool.allocate("40MiB")
        print(budget.limit, flush=True)
        sys.stdin.readline()
        block.free()
        print("free", flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == f"{64 * MIB}\n"
        with pytest.raises(millpond.OutOfMemoryError, match=f"process {other.pid} .* holds 40.00 MiB"):
            pool.allocate("40MiB")
        # The largest comes first.
        theirs, mine = budget.tenants()
        assert (mine.pid, mine.claim, mine.held) == (os.getpid(), 48 * MIB, 0)
        assert (budget.limit, budget.most) == (64 * MIB, 48 * MIB)
        assert (theirs.pid, theirs.claim, theirs.held, theirs.floor) == (other.pid, None, 40 * MIB, 0)
        assert theirs.program and "holds 40.00 MiB" in repr(theirs)
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "free\n"
        with pytest.raises(millpond.OutOfMemoryError):
            pool.allocate("50MiB")
        budget.set(floor="16MiB", claim="40MiB")
        assert [tenant.floor for tenant in budget.tenants() if tenant.pid == mine.pid] == [16 * MIB]
        assert budget.most == 40 * MIB
        # What is idle there comes here.
        budget.set(patience=20)
        block = pool.allocate("40MiB")
        other.kill()
    assert [tenant.pid for tenant in budget.tenants()] == [os.getpid()]
    assert (budget.held, block.size) == (40 * MIB, 40 * MIB)


def test_mistakes_say_what_to_do(name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 64 letters"):
        millpond.Budget(1, name="a/b")
    with pytest.raises(ValueError, match="make it with Budget::named"):
        millpond.Budget(1, floor=1)
    with pytest.raises(ValueError, match="^patience: -1"):
        millpond.Budget(1, name=name, patience=-1)
    with pytest.raises(ValueError, match="use at most 1048576"):
        millpond.Budget("1MiB", name=name).set(floor="2MiB")
    with pytest.raises(TypeError, match="the option 'budget' takes a Budget, not 5"):
        millpond.Pool("sim", budget=5)  # type: ignore[arg-type]
