"""Cases of two GPUs: what access costs, a GPU that is not used, and one that is lost."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

from on_several import Job, tried


def first_copy(job: Job) -> None:
    """What access on demand costs: copies of a fresh tensor, and memory that no other GPU uses."""
    import torch

    torch.zeros(1, device="cuda:1")
    torch.zeros(1, device="cuda:0").to("cuda:1")

    def timed(work: Callable[[], Any]) -> float:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        start = time.perf_counter()
        kept = work()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        micros = 1e6 * (time.perf_counter() - start)
        del kept
        return micros

    firsts, seconds, plain, held = [], [], [], []
    for _ in range(10):
        start = time.perf_counter()
        tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:0")
        plain.append(1e6 * (time.perf_counter() - start))
        target = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:1")
        firsts.append(timed(lambda: target.copy_(tensor)))
        seconds.append(timed(lambda: target.copy_(tensor)))
        held += [tensor, target]
    for name, values in (("new 64 MiB, us", plain), ("first copy, us", firsts), ("second copy, us", seconds)):
        job.notes[name] = round(statistics.median(values))


def on_demand(job: Job) -> None:
    """The same of millpond's own pools, whose memory is for one GPU until a copy needs it."""
    if job.allocator != "millpond":
        return
    import millpond

    for name in ("own", "all"):
        pools = [millpond.Pool(gpu, accessible_from="all" if name == "all" else None) for gpu in range(2)]
        # Both GPUs have memory, and what the first calls set up is there.
        held = [pool.allocate("2MiB") for pool in pools]
        held[1].copy_from(held[0])
        for size in ("2MiB", "32MiB"):
            new: list[float] = []
            first: list[float] = []
            second: list[float] = []
            for _ in range(20):
                start = time.perf_counter()
                source = pools[0].allocate(size)
                new.append(time.perf_counter() - start)
                target = pools[1].allocate(size)
                held += [source, target]
                for times in (first, second):
                    for pool in pools:
                        pool.synchronize()
                    start = time.perf_counter()
                    target.copy_from(source)
                    times.append(time.perf_counter() - start)
            figures = [round(1e6 * statistics.median(times)) for times in (new, first, second)]
            job.notes[f"{name} {size}: new, first, second call, us"] = figures


def unused_gpu(job: Job) -> None:
    """Figures of a GPU that was not used are 0, and make no context there."""
    import torch

    job.gpus = [0]
    torch.ones(1 << 20, device="cuda:0").sum().item()
    names = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    assert [getattr(torch.cuda, name)(1) for name in names] == [0] * 4
    # Settings are among them, as -1.
    assert not any(value > 0 for value in torch.cuda.memory_stats(1).values())
    torch.cuda.memory_summary(1)
    torch.cuda.memory_snapshot()
    if job.allocator == "millpond":
        import millpond

        millpond.memory_summary()
    assert not torch._C._cuda_hasPrimaryContext(1)


def lost(job: Job, lose: Callable[[], Any]) -> None:
    """GPU 1 is lost to this process. GPU 0 works on, and what is of GPU 1 ends in errors."""
    import torch

    kept = torch.ones(1 << 22, device="cuda:0")
    gone = [torch.ones(1 << 22, device="cuda:1") for _ in range(2)]
    job.synchronize()
    job.notes["lose"] = tried(lose)
    job.notes["allocate there"] = tried(lambda: torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1"))
    job.notes["copy from there"] = tried(lambda: gone[0].cpu())
    job.notes["free there"] = tried(gone.clear)
    job.notes["empty the cache"] = tried(torch.cuda.empty_cache)
    job.notes["allocate here"] = tried(lambda: torch.empty(100 << 20, dtype=torch.uint8, device="cuda:0"))
    job.notes["compute here"] = tried(lambda: kept.sum().item())
    job.gpus = [0]


def lost_by_assertion(job: Job) -> None:
    import torch

    def lose() -> None:
        torch._assert_async(torch.zeros(1, device="cuda:1"))
        torch.cuda.synchronize(1)

    lost(job, lose)


def lost_by_reset(job: Job) -> None:
    if job.allocator != "millpond":
        return  # PyTorch's own allocator ends the process.
    driver = ctypes.CDLL("libcuda.so.1")

    def lose() -> None:
        said = driver.cuDevicePrimaryCtxReset_v2(ctypes.c_int(1))
        assert said == 0, said

    lost(job, lose)


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


def driver_calls(job: Job) -> None:
    """What the driver's calls on a page cost, with a peer and without. With millpond other pages have the peer already."""
    import torch

    torch.zeros(1, device="cuda:1")
    torch.zeros(1, device="cuda:0")
    driver = ctypes.CDLL("libcuda.so.1")
    properties = Properties(type=1, handles=1, location=Location(1, 0))
    access = (Access * 2)(Access(Location(1, 0), 3), Access(Location(1, 1), 3))
    times: dict[str, list[float]] = {}

    def call(name: str, function: str, *arguments: Any) -> None:
        start = time.perf_counter()
        said = getattr(driver, function)(*arguments)
        times.setdefault(name, []).append(time.perf_counter() - start)
        assert said == 0, (function, said)

    def page(size: int, gpus: int) -> None:
        at, handle, none = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(0)
        call("reserve", "cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), none, none, none)
        call("create", "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), none)
        call("map", "cuMemMap", at, ctypes.c_size_t(size), none, handle, none)
        call(f"access, {gpus} GPUs", "cuMemSetAccess", at, ctypes.c_size_t(size), access, ctypes.c_size_t(gpus))
        if gpus == 1:
            later = ctypes.byref(access, ctypes.sizeof(Access))
            call("access of the peer later", "cuMemSetAccess", at, ctypes.c_size_t(size), later, ctypes.c_size_t(1))
        call(f"unmap, {gpus} GPUs", "cuMemUnmap", at, ctypes.c_size_t(size))
        call("release", "cuMemRelease", handle)
        call("free", "cuMemAddressFree", at, ctypes.c_size_t(size))

    for size in (2 << 20, 32 << 20, 256 << 20):
        times.clear()
        for _ in range(15):
            page(size, 1)
            page(size, 2)
        job.notes[f"{size >> 20} MiB"] = {name: round(1e6 * statistics.median(each)) for name, each in times.items()}


ALONE = (driver_calls, first_copy, on_demand, unused_gpu, lost_by_assertion, lost_by_reset)
