"""Forked children: they leave their parent's pools alone, are told so at once, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import millpond
import pytest

MIB = 1 << 20
CHILDREN = 10

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # Python warns of forks while there are threads, which is what these tests are about.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def pool() -> Iterator[millpond.Pool]:
    """A pool whose locks other threads have nearly always."""
    pool = millpond.Pool("host", name="forked")
    done = threading.Event()

    def keep_busy() -> None:
        while not done.is_set():
            pool.allocate(5 * MIB).free()
            pool.trim()
            pool.create_stream().synchronize()

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    yield pool
    done.set()
    for thread in threads:
        thread.join()
    pool.check()


def fork_and(child: Callable[[], None]) -> None:
    """Forks a child that does this and ends; kills it and fails where it does not end soon."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended == pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the child hung")


def test_a_child_is_told_that_the_pool_is_its_parents(pool: millpond.Pool) -> None:
    block = pool.allocate(MIB)
    stream = pool.create_stream()

    def child() -> None:
        calls: list[Callable[[], object]] = [
            lambda: pool.allocate(4096),
            lambda: pool.allocate_address(4096),
            lambda: pool.trim(),
            lambda: pool.memory_info(),
            lambda: pool.create_stream(),
            lambda: stream.synchronize(),
            lambda: stream.idle,
            lambda: block.free(),
            lambda: block.record_use(stream),
        ]
        for call in calls:
            with pytest.raises(millpond.ForkedError, match="spawn"):
                call()
        assert pool.stats().allocations > 0

    for _ in range(CHILDREN):
        fork_and(child)
    block.free()


def test_a_child_drops_its_parents_and_has_its_own_pools(pool: millpond.Pool) -> None:
    kept = [pool.allocate(MIB), pool.create_stream(), millpond.Pool("sim").allocate(100)]

    def child() -> None:
        kept.clear()
        own = millpond.Pool("host")
        block = own.allocate(MIB)
        own.synchronize()
        block.free()
        own.check()

    for _ in range(CHILDREN):
        fork_and(child)
    assert len(kept) == 3


def test_processes_of_multiprocessing_end(pool: millpond.Pool) -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    for _ in range(CHILDREN):
        process = context.Process(target=lambda: None)
        process.start()
        process.join(20)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0


SHARED = """
import ctypes, os
import millpond
from millpond import _millpond

_millpond.stand_in(0, millpond.Pool("sim"))
hooks = dict(_millpond.torch_hooks()[1])
alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(hooks["alloc"])
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(hooks["free"])
address = alloc(4096, 0, None)
assert address
if os.fork() == 0:
    try:
        millpond.pool(0)
    except millpond.ForkedError:
        assert alloc(4096, 0, None) is None and "forked" in millpond.last_error()
        free(address, 4096, 0, None)
        assert _millpond.devices_in_use() == []
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
free(address, 4096, 0, None)
assert millpond.pool(0).stats().blocks.current == 0
"""


def test_pytorchs_hooks_refuse_a_child_and_drop_silently() -> None:
    ran = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
