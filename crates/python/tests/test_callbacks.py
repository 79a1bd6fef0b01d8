"""Functions of Python that a pool calls when memory is short."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Any

import millpond
import pytest

MIB = 1 << 20


@pytest.fixture
def pool() -> millpond.Pool:
    return millpond.Pool("host", name="asked", hard_limit=64 * MIB)


def test_a_reclaim_callback_makes_room(pool: millpond.Pool) -> None:
    cache = [pool.allocate(40 * MIB)]
    asked: list[int] = []

    def drop_cache(size: int) -> bool:
        asked.append(size)
        return bool(cache) and cache.pop() is not None

    reclaim = pool.on_reclaim(drop_cache)
    block = pool.allocate(40 * MIB)
    assert (asked, cache, block.size) == ([40 * MIB], [], 40 * MIB)
    with pytest.raises(millpond.OutOfMemoryError):
        pool.allocate(40 * MIB)
    assert asked == [40 * MIB] * 2
    assert reclaim.remove() and not reclaim.remove()
    with pytest.raises(millpond.OutOfMemoryError):
        pool.allocate(40 * MIB)
    assert asked == [40 * MIB] * 2


def test_an_observer_is_told_where_the_memory_is(pool: millpond.Pool) -> None:
    told: list[millpond.OutOfMemory] = []
    block = pool.allocate(6 * MIB)
    with pool.on_out_of_memory(told.append):
        with pytest.raises(millpond.OutOfMemoryError) as caught:
            pool.allocate(100 * MIB)
    with pytest.raises(millpond.OutOfMemoryError):
        pool.allocate(100 * MIB)
    (report,) = told
    assert (report.pool, report.memory, report.requested, report.live) == ("asked", "device", 100 * MIB, 6 * MIB)
    assert (report.limit, report.limit_bytes, report.blocks, report.tenants) == ("hard_limit", 64 * MIB, 1, [])
    assert report.advice == "raise hard_limit, or request less" and str(report) == report.message
    assert report.advice in str(caught.value) and "'asked'" in repr(report)
    # Also where it went to another process.
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.requested, error.live, error.cached) == (report.requested, report.live, report.cached)
        assert (error.reserved, error.what, error.limit) == (report.reserved, "hard_limit", 64 * MIB)
        assert error.advice == report.advice
    assert report.device_total >= report.device_free > 0 and report.reserved >= block.size
    assert report.cached == report.reserved - report.live and report.largest_free <= report.cached
    assert report.other_pools >= 0


def test_an_exception_in_a_callback_is_printed_and_goes_no_further(
    pool: millpond.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda hook: printed.append((hook.exc_type, hook.object)))

    def fails(_of: object) -> bool:
        raise KeyError("mine")

    pool.on_reclaim(fails)
    pool.on_out_of_memory(fails)
    with pytest.raises(millpond.OutOfMemoryError, match="100.00 MiB requested"):
        pool.allocate(100 * MIB)
    assert [each[0] for each in printed] == [] or printed == [(KeyError, fails)] * len(printed)
    kept = pool.allocate(40 * MIB)
    with pytest.raises(millpond.OutOfMemoryError, match="40.00 MiB requested"):
        pool.allocate(40 * MIB)
    assert len(printed) >= 2 and printed == [(KeyError, fails)] * len(printed)
    kept.free()


def test_a_callback_may_use_the_pool_and_other_threads(pool: millpond.Pool) -> None:
    cache = {"entry": pool.allocate(40 * MIB)}

    def drop_cache(_size: int) -> bool:
        def clear() -> None:
            cache.clear()
            pool.trim()
            pool.allocate(1000).free()

        thread = threading.Thread(target=clear)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return True

    with pool.on_reclaim(drop_cache):
        assert pool.allocate(40 * MIB).size == 40 * MIB
    assert cache == {}


def test_threads_are_asked_at_once_without_deadlock(pool: millpond.Pool) -> None:
    lock, cache = threading.Lock(), [pool.allocate(8 * MIB) for _ in range(8)]
    failed: list[BaseException] = []

    def drop_one(_size: int) -> bool:
        with lock:
            if cache:
                cache.pop()
                return True
            return False

    def work() -> None:
        try:
            for _ in range(50):
                block = pool.allocate(8 * MIB)
                with lock:
                    cache.append(block)
                del block
        except BaseException as error:
            failed.append(error)

    with pool.on_reclaim(drop_one):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert all(isinstance(error, millpond.OutOfMemoryError) for error in failed)
    cache.clear()
    pool.check()


def test_a_removed_callback_is_let_go() -> None:
    pool = millpond.Pool("sim")

    class Cache:
        def drop(self, _size: int) -> bool:
            return False

    cache = Cache()
    gone = weakref.ref(cache)
    registered = pool.on_reclaim(cache.drop)
    del cache
    gc.collect()
    assert gone() is not None
    registered.remove()
    gc.collect()
    assert gone() is None
    # With the pool, too.
    cache = Cache()
    gone = weakref.ref(cache)
    registered = pool.on_reclaim(cache.drop)
    del cache, pool, registered
    gc.collect()
    assert gone() is None


def test_what_cannot_be_called_is_refused(pool: millpond.Pool) -> None:
    nonsense: Any = 5
    for register in (pool.on_reclaim, pool.on_out_of_memory):
        with pytest.raises(TypeError, match="something to call is expected, not int"):
            register(nonsense)


#: PyTorch allocates with and without the GIL.
FROM_C = """
import ctypes, threading
import millpond
from millpond import _millpond

_millpond.stand_in(0, millpond.Pool("host", hard_limit="64MiB"))
hooks = dict(_millpond.torch_hooks()[1])
signature = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
cache, told = [], []
# The callbacks are the pool's, not those of the object for it.
millpond.pool(0).on_reclaim(lambda size: bool(cache) and cache.pop().free() is None)
millpond.pool(0).on_out_of_memory(told.append)
free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(hooks["free"])

def allocate(alloc):
    address = alloc(40 << 20, 0, None)
    assert address and not cache
    assert alloc(40 << 20, 0, None) is None and told.pop().requested == 40 << 20
    free(address, 40 << 20, 0, None)

for kind in (ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE):
    alloc = kind(*signature)(hooks["alloc"])
    cache.append(millpond.pool(0).allocate("40MiB"))
    allocate(alloc)
    cache.append(millpond.pool(0).allocate("40MiB"))
    thread = threading.Thread(target=allocate, args=(alloc,))
    thread.start()
    thread.join()
    assert not cache and not told
"""


def test_callbacks_are_called_for_pytorch_with_and_without_the_gil() -> None:
    done = subprocess.run([sys.executable, "-c", FROM_C], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
