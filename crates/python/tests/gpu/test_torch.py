"""PyTorch with millpond as its allocator by PyTorch's hooks for allocators of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import millpond
import pytest

torch = pytest.importorskip("torch")

from tensors import GIB, MIB  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("plug_in", "nothing_is_broken")]


def test_enabling_twice_is_enabling_once() -> None:
    assert millpond.torch.is_enabled() and millpond.torch.throws_out_of_memory
    millpond.torch.enable(backend="plug-in")


def test_from_the_second_pass_on_no_device_call_is_made() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        for rows in (64, 200, 96, 256):
            optimizer.zero_grad()
            model(torch.randn(rows, 512, device="cuda")).square().mean().backward()
            optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    calls, misses = millpond.stats().calls.memory, millpond.stats().misses
    for _ in range(20):
        step()
    assert (millpond.stats().calls.memory, millpond.stats().misses) == (calls, misses)


def test_torchs_own_figures_are_the_pools() -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before + 64 * MIB
    assert torch.cuda.max_memory_allocated() >= before + 64 * MIB
    assert torch.cuda.memory_reserved() == millpond.stats().reserved.current >= 64 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved()
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert torch.accelerator.max_memory_reserved() == torch.cuda.max_memory_reserved()
    assert "Allocated memory" in torch.cuda.memory_summary()
    assert f"pool '{millpond.pool().name}'" in millpond.memory_summary(torch.device("cuda"))
    del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


def test_a_memory_fraction_is_a_limit() -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(GIB / total)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="raise the budget"):
            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")


def test_a_run_is_recorded_and_shown(tmp_path: Path) -> None:
    with millpond.record(tmp_path / "run.mprec", 0), millpond.tag("here"):
        tensors = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in range(1, 9)]
        millpond.snapshot(tmp_path / "run.pickle", 0)
    assert (tmp_path / "run.mprec").stat().st_size > 0
    assert (tmp_path / "run.pickle").stat().st_size > 0
    del tensors


def test_enabling_again_with_options_is_refused() -> None:
    with pytest.raises(millpond.MisuseError, match="before the first allocation"):
        millpond.torch.enable(hard_limit=GIB)


LEFT_OUT: dict[str, Callable[[], Any]] = {
    "memory_snapshot": lambda: torch.cuda.memory_snapshot(),
    "_record_memory_history": lambda: torch.cuda.memory._record_memory_history(),
    "get_per_process_memory_fraction": lambda: torch.cuda.get_per_process_memory_fraction(),
    "_cuda_attach_out_of_memory_observer": lambda: torch._C._cuda_attach_out_of_memory_observer(print),
    "MemPool": lambda: torch.cuda.MemPool(),
    "_cuda_getCheckpointState": lambda: torch._C._cuda_getCheckpointState(0, torch.cuda.graph_pool_handle()),
    "CUDA IPC": lambda: torch.ones(1, device="cuda").untyped_storage()._share_cuda_(),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_the_hooks_leave_out_raises(name: str) -> None:
    with pytest.raises(RuntimeError):
        LEFT_OUT[name]()


def test_cudnn_cannot_measure_its_algorithms() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        with pytest.raises(RuntimeError, match="cacheInfo"):
            torch.nn.Conv2d(8, 16, 3).cuda()(torch.randn(4, 8, 64, 64, device="cuda")).sum().backward()
    finally:
        torch.backends.cudnn.benchmark = False


# Last: threads bring the pool to throughput mode, in which it may grow at any step.
from both import (  # noqa: E402, F401
    test_a_captured_graph_replays_while_eager_work_goes_on,
    test_graphs_that_share_a_pool_replay_in_order,
    test_out_of_memory_is_torchs_error_with_the_pools_message,
    test_recorded_streams_keep_a_tensors_memory,
    test_sixteen_threads_with_a_stream_each,
    test_tensors_come_from_the_pool,
)
