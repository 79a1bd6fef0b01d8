"""What holds of PyTorch's memory by the plug-in and by the native interface: the files for each run these tests."""

from __future__ import annotations

import threading
from typing import Any

import millpond
import pytest
import torch
from tensors import MIB


def test_tensors_come_from_the_pool() -> None:
    before = millpond.stats(0).allocations
    tensor = torch.full((1024, 1024), 3.0, device="cuda")
    assert millpond.stats(0).allocations > before
    assert tensor.sum().item() == 3 * MIB
    assert torch.empty(0, device="cuda").numel() == 0


def test_out_of_memory_is_torchs_error_with_the_pools_message() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    message = str(caught.value)
    assert message.startswith("CUDA out of memory. ")
    assert "out of memory in pool 'cuda:0': " in message and " requested, but " in message
    assert millpond.last_error() is not None and millpond.last_error() in message  # type: ignore[operator]
    assert torch.ones(10, device="cuda").sum().item() == 10, "the process goes on"


def test_recorded_streams_keep_a_tensors_memory() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    sums, wanted = [], []
    for step in range(100):
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
    failures: list[BaseException] = []

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
    kept: list[Any] = []
    for step in range(50):
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
