"""The GIL is free wherever a call can wait: what it waits for may need the GIL itself."""

from __future__ import annotations

import ctypes
import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import millpond
import pytest
from millpond import _millpond

MIB = 1 << 20

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Pending:
    """Work on a stream that ends only once Python code ran there, as a host function of CuPy does."""

    def __init__(self, stream: millpond.Stream) -> None:
        self.started, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        self._function = HostFunction(self._run)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        _millpond.launch_host_function(stream, address, 0)
        assert self.started.wait(10)

    def _run(self, _argument: object) -> None:
        self.started.set()
        self.may_end.wait(10)
        self.ended.set()

    def end_in(self, seconds: float) -> None:
        """Lets it end from another thread, which needs the GIL for that."""
        threading.Timer(seconds, self.may_end.set).start()


def run(program: str) -> None:
    """Runs a program that would hang with the GIL held, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


PENDING = """
import ctypes, gc, threading
import millpond
from millpond import _millpond

pool = _millpond.pool_for_host_functions()
stream = pool.create_stream()
block = pool.allocate(1 << 20, stream)
started = threading.Event()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def function(_argument):
    started.set()
    # It needs the GIL to go on after this.
    threading.Event().wait(0.3)

_millpond.launch_host_function(stream, ctypes.cast(function, ctypes.c_void_p).value, 0)
assert started.wait(10)
"""


@pytest.mark.parametrize(
    "ends",
    [
        "block.free(); del block, pool",
        "del pool; del block",
        "del block; pool.destroy()",
        "del pool, block, stream; gc.collect()",
        "kept = [pool]; kept.append(kept); del pool, block, kept; gc.collect()",
    ],
)
def test_a_pool_that_closes_waits_without_the_gil(ends: str) -> None:
    run(PENDING + ends)


@pytest.fixture
def pool() -> millpond.Pool:
    return _millpond.pool_for_host_functions()


def calls(pool: millpond.Pool, stream: millpond.Stream, block: millpond.Block) -> Iterator[Callable[[], Any]]:
    """Calls that wait for the work on a stream."""
    yield pool.synchronize
    yield stream.synchronize
    yield block.synchronize
    yield lambda: memoryview(block).release()
    yield lambda: block.__dlpack__()
    yield lambda: pool.sleep("nothing")


@pytest.mark.parametrize("which", range(6))
def test_calls_wait_without_the_gil(pool: millpond.Pool, which: int) -> None:
    stream = pool.create_stream()
    block = pool.allocate(MIB, stream)
    pending = Pending(stream)
    pending.end_in(0.05)
    list(calls(pool, stream, block))[which]()
    assert pending.ended.is_set()


def test_calls_that_need_what_another_thread_has_wait_without_the_gil(pool: millpond.Pool) -> None:
    stream = pool.create_stream()
    block = pool.allocate(MIB, stream)
    pending = Pending(stream)
    waiting = threading.Thread(target=block.synchronize)  # has the block meanwhile
    waiting.start()
    time.sleep(0.05)
    pending.end_in(0.05)
    assert not block.freed and "freed" not in repr(block)
    waiting.join(10)
    assert pending.ended.is_set()


def test_receiving_a_block_waits_without_the_gil() -> None:
    pool = millpond.Pool("host")
    here, there = socket.socketpair()
    with here, there:
        block = pool.allocate(MIB)
        shared = block.share()
        threading.Timer(0.05, shared.send, [here]).start()
        opened, _ = pool.open_shared(there)
    assert opened.size == MIB


def test_a_block_that_is_ready_is_taken_and_freed_as_any_other(pool: millpond.Pool) -> None:
    stream = pool.create_stream()
    streams: list[Any] = [stream, None, stream.handle]
    for each in streams:
        for size in (1, 1000, MIB, 5 * MIB):
            before = pool.stats()
            for _ in range(10):
                address = pool.allocate_address(size, each)
                pool.free_address(address, each)
                with pytest.raises(millpond.MisuseError):
                    pool.free_address(address, each)
                block = pool.allocate(size, each)
                block.free()
                with pytest.raises(millpond.MisuseError, match="freed already"):
                    block.free()
                del block
            gc.collect()
            after = pool.stats()
            assert after.allocations - before.allocations == after.frees - before.frees == 20
            assert after.blocks.current == before.blocks.current
    pool.check()
