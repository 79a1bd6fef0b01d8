"""PyTorch with millpond as its allocator."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import millpond
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module", autouse=True)
def _enabled() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    millpond.torch.enable()
    assert millpond.torch.is_enabled() and millpond.torch.throws_out_of_memory
    millpond.torch.enable()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    torch.cuda.synchronize()
    millpond.pool(0).check()


# First of all: the tests with many threads bring the pool to throughput mode, in which it may grow at any step.
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


def test_tensors_come_from_the_pool() -> None:
    before = millpond.stats(0).allocations
    tensor = torch.full((1024, 1024), 3.0, device="cuda")
    assert millpond.stats(0).allocations > before
    assert tensor.sum().item() == 3 * MIB
    assert torch.empty(0, device="cuda").numel() == 0


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


def test_out_of_memory_is_torchs_error_with_the_pools_message() -> None:
    free, total = torch.cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    message = str(caught.value)
    assert message.startswith("CUDA out of memory. out of memory in pool 'cuda:0': ")
    assert " requested, but " in message
    assert millpond.last_error() is not None and millpond.last_error() in message  # type: ignore[operator]
    assert torch.ones(10, device="cuda").sum().item() == 10, "the process goes on"


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


def test_recorded_streams_keep_a_tensors_memory() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    sums, wanted = [], []
    for step in range(200):
        side = streams[step % 4]
        tensor = torch.full((256 * 1024,), float(step), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        # Before the work, as programs do it: the use counts up to the free.
        tensor.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
            sums.append(tensor.sum())
        wanted.append(step * 256.0 * 1024)
        del tensor
        # Takes what was freed, if the pool were wrong.
        torch.full((256 * 1024,), -1.0, device="cuda")
    torch.cuda.synchronize()
    assert [value.item() for value in sums] == wanted


def test_sixteen_threads_with_a_stream_each() -> None:
    failures: list[Any] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for step in range(100):
                    size = 1000 * (number + 1) + step * 37
                    tensor = torch.full((size,), float(number), device="cuda")
                    if tensor.sum().item() != number * size:
                        raise AssertionError(f"thread {number}, step {step}")
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_captured_graph_replays_while_eager_work_goes_on() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
    entry = torch.randn(128, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(entry)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = model(entry) + model(entry * 2)
    kept = []
    for step in range(100):
        fresh = torch.randn(128, 256, device="cuda")
        entry.copy_(fresh)
        graph.replay()
        eager = [torch.full((step * 1000 + 1,), float(step), device="cuda") for _ in range(5)]
        with torch.no_grad():
            torch.testing.assert_close(result, model(fresh) + model(fresh * 2), rtol=1e-4, atol=1e-4)
        assert all(tensor[-1].item() == step for tensor in eager)
        kept.append(eager[0])
    assert all(tensor[0].item() == step for step, tensor in enumerate(kept))
    reserved = millpond.stats().reserved.current
    del result, graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert millpond.stats().reserved.current <= reserved


def test_graphs_that_share_a_pool_replay_in_order() -> None:
    entry = torch.ones(1 << 20, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(first):
        doubled = entry * 2
    with torch.cuda.graph(second, pool=first.pool()):
        total = (doubled + entry).sum()
    for step in range(10):
        entry.fill_(step)
        first.replay()
        second.replay()
        assert total.item() == 3 * step * (1 << 20)


def test_cudnn_measures_its_algorithms() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        torch.nn.Conv2d(8, 16, 3).cuda()(torch.randn(4, 8, 64, 64, device="cuda")).sum().backward()
    except RuntimeError as error:
        if "cacheInfo" not in str(error):
            raise
        pytest.xfail("PyTorch refuses what cuDNN's measuring asks of a plugged allocator")
    finally:
        torch.backends.cudnn.benchmark = False


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
