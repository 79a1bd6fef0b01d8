"""The functions that PyTorch calls, called as PyTorch does, with a pool of the CPU in the place of GPU 63's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import millpond
import pytest
from millpond import _millpond, _torch_figures

MIB = 1 << 20
ORDINAL = 63


@pytest.fixture(scope="module")
def pool() -> millpond.Pool:
    pool = millpond.Pool("host", name="stand-in", hard_limit=256 * MIB)
    _millpond.stand_in(ORDINAL, pool)
    return pool


class Hooks:
    def __init__(self) -> None:
        at = dict(_millpond.torch_hooks()[1])
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        self.alloc = ctypes.CFUNCTYPE(pointer, size, number, pointer)(at["alloc"])
        self.free = ctypes.CFUNCTYPE(None, pointer, size, number, pointer)(at["free"])
        self.reset = ctypes.CFUNCTYPE(None)(at["set_reset_fn"])
        self.fraction = ctypes.CFUNCTYPE(None, ctypes.c_double, number)(at["set_memory_fraction_fn"])
        sizes = ctypes.POINTER(size)
        self.base = ctypes.CFUNCTYPE(pointer, pointer, sizes)(at["set_base_alloc_fn"])
        self.record = ctypes.CFUNCTYPE(None, pointer, pointer)(at["set_record_stream_fn"])


@pytest.fixture(scope="module")
def hooks(pool: millpond.Pool) -> Hooks:
    return Hooks()


def test_what_is_allocated_is_the_shared_pools(pool: millpond.Pool, hooks: Hooks) -> None:
    assert ORDINAL in _millpond.devices_in_use()
    address = hooks.alloc(MIB, ORDINAL, None)
    assert address and millpond.stats(ORDINAL).requested.current == MIB
    ctypes.memset(address, 7, MIB)
    hooks.free(address, MIB, ORDINAL, None)
    assert millpond.stats(ORDINAL).blocks.current == 0
    assert hooks.alloc(0, ORDINAL, None) is None


def test_a_free_is_ordered_on_the_stream_that_is_passed(pool: millpond.Pool, hooks: Hooks) -> None:
    streams = [pool.create_stream() for _ in range(4)]
    for turn in range(100):
        stream = streams[turn % 4].handle
        address = hooks.alloc(3 * MIB, ORDINAL, stream)
        hooks.free(address, 3 * MIB, ORDINAL, stream)
    assert pool.stats().blocks.current == 0
    pool.check()


def test_a_recorded_use_keeps_the_block_from_other_streams(pool: millpond.Pool, hooks: Hooks) -> None:
    stream = pool.create_stream()
    address = hooks.alloc(MIB, ORDINAL, None)
    hooks.record(address, stream.handle)
    hooks.free(address, MIB, ORDINAL, None)
    hooks.record(None, stream.handle)
    stream.synchronize()
    pool.check()


def test_call_sites_are_of_python_with_the_gil_and_without(pool: millpond.Pool, hooks: Hooks, tmp_path: Path) -> None:
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    # It keeps the GIL; the other lets go of it, as PyTorch does before most allocations.
    holding = ctypes.PYFUNCTYPE(pointer, size, number, pointer)(dict(_millpond.torch_hooks()[1])["alloc"])
    path, peak = tmp_path / "run.mprec", tmp_path / "peak.folded"
    pool.start_recording(path, call_sites=True)
    first = holding(MIB, ORDINAL, None)
    second = hooks.alloc(3 * MIB, ORDINAL, None)  # of another line: stacks are told apart by that
    pool.stop_recording()
    hooks.free(first, MIB, ORDINAL, None)
    hooks.free(second, 3 * MIB, ORDINAL, None)
    run = [sys.executable, "-m", "millpond", "replay", str(path), "--allocator", "millpond", "--export-stacks", str(peak)]
    subprocess.run(run, capture_output=True, check=True)
    stacks = {int(bytes): stack for stack, bytes in (line.rsplit(" ", 1) for line in peak.read_text().splitlines())}
    for stack in (stacks[MIB], stacks[3 * MIB]):
        assert "test_hooks.py" in stack and "PyEval" not in stack


def test_threads_call_the_hooks_at_once(pool: millpond.Pool, hooks: Hooks) -> None:
    def work(stream: int) -> None:
        for size in range(1, 200):
            address = hooks.alloc(size * 512, ORDINAL, stream)
            ctypes.memset(address, size % 256, size * 512)
            hooks.free(address, size * 512, ORDINAL, stream)

    streams = [pool.create_stream() for _ in range(8)]
    threads = [threading.Thread(target=work, args=(stream.handle,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().blocks.current == 0
    pool.check()


def test_the_base_of_a_block_is_found_from_inside(hooks: Hooks) -> None:
    address = hooks.alloc(MIB, ORDINAL, None)
    size = ctypes.c_size_t()
    assert hooks.base(address + 1000, ctypes.byref(size)) == address
    assert size.value == MIB
    assert hooks.base(address, None) == address
    hooks.free(address, MIB, ORDINAL, None)


def test_without_pytorch_a_failing_allocation_is_null_with_a_message(hooks: Hooks) -> None:
    assert hooks.alloc(512 * MIB, ORDINAL, None) is None
    message = millpond.last_error()
    assert message is not None and "512.00 MiB requested" in message and "hard_limit" in message
    assert hooks.alloc(MIB, 64, None) is None
    assert millpond.last_error() == "there is no GPU 64: GPUs are numbered from 0 to 63"


def test_a_free_that_fails_is_said_and_changes_nothing(
    hooks: Hooks, capfd: pytest.CaptureFixture[str]
) -> None:
    hooks.free(0x1230, 10, ORDINAL, None)
    assert "millpond: 0x1230 was not allocated by pool 'stand-in'" in capfd.readouterr().err


def test_a_free_that_fails_does_not_end_the_process() -> None:
    program = """
import ctypes, millpond
from millpond import _millpond
_millpond.stand_in(0, millpond.Pool("host"))
pointer = ctypes.c_void_p
free = dict(_millpond.torch_hooks()[1])["free"]
ctypes.CFUNCTYPE(None, pointer, ctypes.c_size_t, ctypes.c_int, pointer)(free)(0x1230, 10, 0, None)
print(millpond.last_error())
"""
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.returncode == 0 and done.stdout.startswith("0x1230 was not allocated by pool"), done


def test_empty_cache_gives_back_what_is_free(pool: millpond.Pool, hooks: Hooks) -> None:
    address = hooks.alloc(32 * MIB, ORDINAL, None)
    hooks.free(address, 32 * MIB, ORDINAL, None)
    assert pool.stats().cached >= 32 * MIB
    pool.synchronize()
    hooks.reset()
    assert pool.stats().reserved.current == 0


def test_the_shared_pool_answers_by_any_name_of_its_gpu(pool: millpond.Pool) -> None:
    assert millpond.pool("cuda:63").name == "stand-in"
    assert "pool 'stand-in' of host" in millpond.memory_summary(ORDINAL)
    millpond.reset_peak(ORDINAL)
    assert millpond.empty_cache(ORDINAL) == 0
    for wrong in ("host", "cuda:x", 1.5):
        with pytest.raises(ValueError, match="is no GPU"):
            millpond.stats(wrong)
    with pytest.raises(millpond.DeviceError, match="there is no GPU 64"):
        millpond.stats(64)


def test_options_come_too_late_once_a_pool_is_there(pool: millpond.Pool) -> None:
    with pytest.raises(millpond.MisuseError, match="give options before the first allocation"):
        millpond.configure(hard_limit=MIB)


def test_all_pools_are_recorded_to_one_file(pool: millpond.Pool, hooks: Hooks, tmp_path: Any) -> None:
    path = tmp_path / "run.mprec"
    with millpond.record(path):
        hooks.free(hooks.alloc(MIB, ORDINAL, None), MIB, ORDINAL, None)
        millpond.snapshot(tmp_path / "now.pickle", ORDINAL)
    assert path.stat().st_size > 0 and (tmp_path / "now.pickle").stat().st_size > 0
    assert pool.recording is None


def test_pytorchs_figures_have_pytorchs_names(pool: millpond.Pool, hooks: Hooks) -> None:
    address = hooks.alloc(3 * MIB, ORDINAL, None)
    figures = _torch_figures.nested_figures(ORDINAL)
    assert figures["requested_bytes"]["all"]["current"] == 3 * MIB
    assert figures["allocated_bytes"]["all"]["peak"] >= 3 * MIB
    assert figures["reserved_bytes"]["all"]["current"] == pool.stats().reserved.current
    assert figures["num_ooms"] == pool.stats().out_of_memory
    hooks.free(address, 3 * MIB, ORDINAL, None)


def test_torchs_functions_answer_with_the_pools_figures(pool: millpond.Pool, hooks: Hooks) -> None:
    initialized = [False]
    memory, accelerator = SimpleNamespace(), SimpleNamespace(memory=SimpleNamespace())
    cuda = SimpleNamespace(memory=memory, is_initialized=lambda: initialized[0])
    cuda.memory_stats = lambda device: ("flat", device)
    _torch_figures.replace_figures(SimpleNamespace(cuda=cuda, accelerator=accelerator))
    assert cuda.memory_stats_as_nested_dict is memory.memory_stats_as_nested_dict
    assert cuda.memory_stats_as_nested_dict(ORDINAL) == {}
    initialized[0] = True
    hooks.free(hooks.alloc(9 * MIB, ORDINAL, None), 9 * MIB, ORDINAL, None)
    nested = memory.memory_stats_as_nested_dict(ORDINAL)
    assert nested["requested_bytes"]["all"]["peak"] >= 9 * MIB and nested["allocation"]["all"]["allocated"] > 0
    accelerator.reset_peak_memory_stats(ORDINAL)
    memory.reset_accumulated_memory_stats(ORDINAL)
    nested = cuda.memory_stats_as_nested_dict(f"cuda:{ORDINAL}")
    assert nested["requested_bytes"]["all"]["peak"] == 0 and nested["allocation"]["all"]["allocated"] == 0
    assert accelerator.memory.memory_stats(5) == ("flat", 5)


def test_a_stream_of_another_gpu_is_not_recorded(pool: millpond.Pool, hooks: Hooks) -> None:
    other = millpond.Pool("host", capacity=64 * MIB)
    _millpond.stand_in(62, other)
    stream = other.create_stream()
    address = hooks.alloc(MIB, ORDINAL, None)
    hooks.record(address, stream.handle + 1000)
    message = millpond.last_error()
    assert message is not None and "stream" in message
    hooks.free(address, MIB, ORDINAL, None)
    pool.check()
