"""CUDA tensors of several processes (torch.multiprocessing), with millpond as PyTorch's allocator in each."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import millpond
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

# As a program has it, before CUDA is used. A process that is spawned imports this, too. NVML starts no CUDA, as a fork needs it.
if torch.cuda._device_count_nvml() > 0:
    millpond.torch.enable(backend="native-interface")

MIB = 1 << 20
WAIT = 120


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    yield
    let_go()
    torch.cuda.synchronize()
    assert millpond.stats(0).blocks.current == 0
    torch.cuda.empty_cache()
    assert millpond.stats(0).reserved.current == 0
    millpond.pool(0).check()


def let_go() -> None:
    gc.collect()
    torch.cuda.ipc_collect()


def filled(mib: int, value: int) -> Any:
    return torch.full((mib * MIB,), value, dtype=torch.uint8, device="cuda")


def holds(tensor: Any, value: int) -> bool:
    return bool((tensor == value).all())


def serve(questions: Any, answers: Any) -> None:
    """The other process: reads, writes in place, and sends a tensor of its own."""
    large, part, small = questions.get()
    assert holds(large[8 * MIB :], 1) and holds(part, 2) and holds(small, 3)
    assert part.data_ptr() == large.data_ptr(), "views of one storage stay views of one storage"
    assert millpond.stats(0).requested.current < MIB, "what others share takes no memory here"
    large.fill_(4)
    torch.cuda.synchronize()
    answers.put("written")
    own = filled(5, 5)
    answers.put(own)
    assert questions.get(timeout=WAIT) == "seen"
    assert holds(own, 6)
    del large, part, small, own
    let_go()
    assert millpond.stats(0).blocks.current == 0
    torch.cuda.empty_cache()
    millpond.pool(0).check()
    answers.put("done")


def both_ways(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=serve, args=(questions, answers))
    process.start()
    large, small = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"), filled(1, 3)
    part = large[: 8 * MIB]
    # The other process waits for this work, and the host of neither does.
    torch.cuda._sleep(200_000_000)
    large.fill_(1)
    part.fill_(2)
    questions.put((large, part, small))
    assert answers.get(timeout=WAIT) == "written"
    assert holds(large, 4)
    theirs = answers.get(timeout=WAIT)
    assert holds(theirs, 5)
    theirs.fill_(6)
    torch.cuda.synchronize()
    # What is freed here stays theirs while they have it: nobody else gets it.
    addresses = range(large.data_ptr(), large.data_ptr() + 64 * MIB)
    del large, part, small, theirs
    let_go()
    others = [filled(16, 9) for _ in range(8)]
    assert all(other.data_ptr() not in addresses for other in others)
    del others
    questions.put("seen")
    assert answers.get(timeout=WAIT) == "done"
    process.join(WAIT)
    assert process.exitcode == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_tensors_go_both_ways(method: str) -> None:
    both_ways(method)


def test_tensors_go_to_a_process_that_was_forked_before_cuda_was_used() -> None:
    # In a process of its own: here CUDA was used.
    assert subprocess.run([sys.executable, __file__]).returncode == 0


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def sum_all(tensors: Any, answers: Any) -> None:
    allow_many_files()
    received = tensors.get()
    answers.put(sum(int(tensor[0]) for tensor in received))


def test_more_tensors_are_shared_than_a_process_has_descriptors_at_first() -> None:
    allow_many_files()
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=sum_all, args=(tensors, answers))
    process.start()
    kept = [torch.full((1000,), number, device="cuda") for number in range(1500)]
    before = len(os.listdir("/proc/self/fd"))
    tensors.put(kept)
    assert answers.get(timeout=WAIT) == sum(range(1500))
    process.join(WAIT)
    assert process.exitcode == 0
    kept.clear()
    let_go()
    torch.cuda.empty_cache()
    assert len(os.listdir("/proc/self/fd")) < before + 50


def weights(models: Any, answers: Any) -> None:
    model = models.get()
    with torch.no_grad():
        answers.put(sum(parameter.sum().item() for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.zero_()
        torch.cuda.synchronize()
    del model, parameter
    let_go()
    answers.put("zeroed")


def test_a_model_is_shared_with_a_worker() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 10)).cuda()
    expected = sum(parameter.sum().item() for parameter in model.parameters())
    context = torch.multiprocessing.get_context("spawn")
    # By a queue: a process keeps its arguments until it ends, and then tells nobody that it let go of them.
    models, answers = context.Queue(), context.Queue()
    process = context.Process(target=weights, args=(models, answers))
    process.start()
    models.put(model)
    assert answers.get(timeout=WAIT) == pytest.approx(expected)
    assert answers.get(timeout=WAIT) == "zeroed"
    assert all(not parameter.any() for parameter in model.parameters())
    process.join(WAIT)
    assert process.exitcode == 0
    del model


def test_memory_of_a_mempool_is_refused_with_what_to_do() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(1, 1)
    with pytest.raises(RuntimeError, match="send a clone of the tensor"):
        tensor.untyped_storage()._share_cuda_()
    del tensor, pool


if __name__ == "__main__":
    both_ways("fork")
