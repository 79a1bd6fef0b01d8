"""Many threads at once, with the GIL or on a free-threaded Python."""

from __future__ import annotations

import gc
import os
import random
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator

import millpond
import pytest

MIB = 1 << 20
THREADS = 8


def together(work: Callable[[int], None]) -> None:
    """Runs it on many threads, which begin at once."""
    begin, failed = threading.Barrier(THREADS), []

    def run(number: int) -> None:
        try:
            begin.wait(30)
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_the_extension_leaves_the_gil_off() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED") or os.environ.get("PYTHON_GIL") == "1":
        pytest.skip("this Python has a GIL")
    # Where an extension does not say that it needs none, importing it switches the GIL on.
    assert not getattr(sys, "_is_gil_enabled")()


def test_threads_allocate_free_and_pass_blocks_on() -> None:
    pool = millpond.Pool("host")
    passed: list[millpond.Block] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        stream = pool.create_stream()
        own: list[millpond.Block] = []
        for _ in range(300):
            block = pool.allocate(choose.randrange(1, MIB), choose.choice((stream, None)))
            with memoryview(block) as view:
                view[0] = number
            choose.choice((own, passed)).append(block)
            if choose.random() < 0.6:
                kept = choose.choice((own, passed))
                try:
                    block = kept.pop()
                except IndexError:
                    continue
                if choose.random() < 0.5:
                    block.free()
            if choose.random() < 0.02:
                pool.trim()
                assert pool.stats().requested.current >= 0

    together(work)
    passed.clear()
    gc.collect()
    assert pool.stats().blocks.current == 0
    pool.check()


def test_threads_use_one_block_at_once() -> None:
    pool = millpond.Pool("host")
    block = pool.allocate(MIB)
    freed: list[int] = []

    def work(number: int) -> None:
        stream = pool.create_stream()
        for _ in range(50):
            block.record_use(stream)
            block.synchronize()
            memoryview(block).release()
            assert not block.freed and block.size == MIB and repr(block)

    def free(number: int) -> None:
        try:
            block.free()
            freed.append(number)
        except millpond.MisuseError:
            pass

    together(work)
    together(free)
    assert len(freed) == 1 and block.freed and pool.stats().frees == 1
    pool.check()


def test_threads_make_and_drop_pools_streams_and_callbacks() -> None:
    shared = millpond.Pool("host", hard_limit=64 * MIB)
    budget = millpond.Budget("1GiB")

    def work(number: int) -> None:
        for step in range(20):
            pool = millpond.Pool("host", budget=budget)
            with shared.on_reclaim(lambda size: False), pool.on_out_of_memory(print):
                block = pool.allocate(MIB, pool.create_stream())
                with shared.tagged(f"tag{step % 3}").allocate(1000):
                    assert shared.tags and shared.memory_info()[1] > 0
            with pool.capture_pool().begin(pool.create_stream()):
                pass
            with millpond.tag(f"step {step}"):
                budget.set(limit="1GiB")
            del pool
            block.free()

    together(work)
    gc.collect()
    assert budget.held == 0
    shared.check()


def test_threads_that_run_out_of_memory_are_all_asked() -> None:
    pool = millpond.Pool("host", hard_limit=32 * MIB)
    cache = [pool.allocate(4 * MIB) for _ in range(8)]
    told: list[millpond.OutOfMemory] = []

    def drop_one(_size: int) -> bool:
        try:
            cache.pop().free()
            return True
        except IndexError:
            return False

    def work(_number: int) -> None:
        for _ in range(30):
            try:
                cache.append(pool.allocate(4 * MIB))
            except millpond.OutOfMemoryError:
                pass

    with pool.on_reclaim(drop_one), pool.on_out_of_memory(told.append):
        together(work)
    assert all(report.requested == 4 * MIB for report in told)
    cache.clear()
    gc.collect()
    pool.check()


def test_a_tag_that_another_thread_would_end_is_refused_there() -> None:
    def tagged() -> Iterator[None]:
        with millpond.tag("generator"):
            yield

    generator, refused = tagged(), []
    next(generator)

    def close() -> None:
        with pytest.raises(millpond.MisuseError, match='the tag "generator" was begun on another thread'):
            generator.close()  # type: ignore[attr-defined]
        refused.append(True)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert refused == [True]


def test_tags_may_end_in_any_order_and_on_no_thread() -> None:
    tag = millpond.tag("again")
    with tag, tag:
        pass
    tag.__exit__()
    one, other = millpond.tag("one"), millpond.tag("other")
    one.__enter__()
    other.__enter__()
    one.__exit__()
    other.__exit__()
    # A thread ends with its own.
    thread = threading.Thread(target=one.__enter__)
    thread.start()
    thread.join()
    del one, thread
    gc.collect()
