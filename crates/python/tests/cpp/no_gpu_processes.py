"""CUDA tensors of several processes on the native interface, without a GPU: `scripts/check-torch-shims` runs this.

As in `no_gpu.py`, a pool of the CPU stands in for GPU 0's, in each process. Bytes are written and read by the CPU.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from typing import Any

import millpond
from millpond import _millpond

# What a program has at its start. A process that is spawned runs it, too.
if "native" not in sys.argv:
    millpond.torch.enable(backend="native-interface")

import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

MIB = 1 << 20


def start() -> millpond.Pool:
    """What stands in for a GPU, in this process."""
    pool = millpond.Pool("host", hard_limit=512 * MIB)
    _millpond.stand_in(0, pool)
    # The properties of the GPU, which has none.
    torch.cuda._queued_calls.clear()
    torch.cuda.init()
    return pool


def empty(bytes: int) -> Any:
    return torch.empty(bytes, dtype=torch.uint8, device="cuda")


def fill(tensor: Any, value: int) -> None:
    ctypes.memset(tensor.data_ptr(), value, tensor.numel())


def holds(tensor: Any, value: int) -> bool:
    return bool(ctypes.string_at(tensor.data_ptr(), tensor.numel()) == bytes([value]) * tensor.numel())


def serve(questions: Any, answers: Any) -> None:
    """The other process: opens tensors, writes to them, and sends one of its own."""
    pool = start()
    large, small, part = questions.get()
    assert holds(large, 1) and holds(small, 2) and holds(part, 3)
    assert part.data_ptr() == large.data_ptr() + 8 * MIB, "views of one storage stay views of one storage"
    assert pool.stats().allocated.current == 0, "what others share takes no memory here"
    fill(large, 4)
    answers.put("written")
    own = empty(3 * MIB)
    fill(own, 5)
    answers.put(own)
    assert questions.get() == "seen"
    assert holds(own, 6)
    del large, small, part, own
    gc.collect()
    torch.cuda.ipc_collect()
    assert pool.stats().allocated.current == 0, "its own tensor is free once nobody has it"
    pool.check()
    answers.put("done")


def both_ways(method: str, pool: millpond.Pool | None) -> None:
    context = mp.get_context(method)
    questions, answers = context.Queue(), context.Queue()
    process = context.Process(target=serve, args=(questions, answers))
    process.start()
    # A process that is forked must be so before CUDA is used.
    pool = pool or start()
    large, small = empty(40 * MIB), empty(1000)
    part = large[8 * MIB : 9 * MIB]
    for tensor, value in ((large, 1), (small, 2), (part, 3)):
        fill(tensor, value)
    before, descriptors = pool.stats().reserved.current, len(os.listdir("/proc/self/fd"))
    questions.put((large[: 8 * MIB], small, part))
    assert answers.get(timeout=60) == "written"
    assert holds(large[: 8 * MIB], 4) and holds(part, 3)
    theirs = answers.get(timeout=60)
    assert holds(theirs, 5)
    fill(theirs, 6)
    # What is freed here stays theirs as long as they have it.
    del large, part, tensor
    gc.collect()
    torch.cuda.ipc_collect()
    assert pool.stats().allocated.current >= 40 * MIB
    del theirs
    gc.collect()
    questions.put("seen")
    assert answers.get(timeout=60) == "done"
    process.join()
    assert process.exitcode == 0
    torch.cuda.ipc_collect()
    assert pool.stats().allocated.current == 1024, pool.stats()
    del small
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    assert pool.stats().reserved.current == 0 < before, pool.stats()
    pool.check()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 12
    print(f"  {method}")


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def read_all(tensors: Any, answers: Any) -> None:
    allow_many_files()
    start()
    received = tensors.get()
    assert all(holds(tensor, number % 256) for number, tensor in enumerate(received))
    answers.put(len(received))


def many(pool: millpond.Pool) -> None:
    """More than a process may have open descriptors at first."""
    allow_many_files()
    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=read_all, args=(tensors, answers))
    process.start()
    kept = [empty(1000) for _ in range(1500)]
    for number, tensor in enumerate(kept):
        fill(tensor, number % 256)
    before = len(os.listdir("/proc/self/fd"))
    tensors.put(kept)
    assert answers.get(timeout=60) == 1500
    process.join()
    assert process.exitcode == 0
    kept.clear()
    del tensor
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.empty_cache()
    assert pool.stats().reserved.current == 0
    assert len(os.listdir("/proc/self/fd")) < before + 20
    print("  many")


def refuse(tensors: Any) -> None:
    """The other process allocates with PyTorch's own allocator."""
    try:
        tensors.get()
    except millpond.Error as error:
        assert "call millpond.torch.enable" in str(error), error
        sys.exit(0)
    sys.exit(1)


def fails(call: Any, error: type[BaseException], words: str) -> None:
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
    else:
        raise AssertionError(f"no {error.__name__}")


def refusals(pool: millpond.Pool) -> None:
    tensor = empty(MIB)
    storage = tensor.untyped_storage()
    handle = storage._share_cuda_()
    assert handle[1] == storage._share_cuda_()[1], "one block has one handle"
    rebuild = torch.UntypedStorage._new_shared_cuda
    old, wrong, gone = (handle[1].split(b"/") for _ in range(3))
    old[1], wrong[3] = b"1", b"0" * 32
    fails(lambda: rebuild(handle[0], b"/".join(old), *handle[2:]), RuntimeError, "of another version of millpond")
    fails(lambda: rebuild(handle[0], b"/".join(wrong), *handle[2:]), RuntimeError, "not one of its process")
    gone[4] = b"ffff"
    fails(lambda: rebuild(handle[0], b"/".join(gone), *handle[2:]), RuntimeError, "was freed there")
    gone[2] = b"0" * 16
    fails(lambda: rebuild(handle[0], b"/".join(gone), *handle[2:]), RuntimeError, "does not answer")
    memory = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(memory):
        inside = empty(MIB)
    fails(inside.untyped_storage()._share_cuda_, RuntimeError, "send a clone of the tensor")
    context = mp.get_context("spawn")
    tensors = context.Queue()
    sys.argv.append("native")
    process = context.Process(target=refuse, args=(tensors,))
    process.start()
    sys.argv.remove("native")
    tensors.put(tensor)
    process.join()
    assert process.exitcode == 0
    print("  refusals")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        for method in ("fork", "spawn", "forkserver"):
            child = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-W", "ignore", __file__, method])
            assert child == 0, method
        pool = start()
        many(pool)
        refusals(pool)
    else:
        method = sys.argv.pop()
        both_ways(method, None if method == "fork" else start())
