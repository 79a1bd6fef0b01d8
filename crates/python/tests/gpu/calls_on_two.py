"""What calls of the driver and of PyTorch that few programs make do with two GPUs' memory. A process for each case.

    python calls_on_two.py [MILLPOND]

The cases of the driver run as they are, and under `MILLPOND run`, which is to answer the same. Those of PyTorch and CuPy run with their
own allocators and with millpond, and are to find the same.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from typing import Any

from on_several import enable, tried

BYTES = 5 << 20
READ_WRITE = 3


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("most", c_size_t),
        ("usage", ctypes.c_ushort), ("reserved", c_ubyte * 54),
    ]


class Driver:
    """Two GPUs with a context and a stream each. Calls that the driver refuses are noted, with their number."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.calls, self.codes = 0, list[str]()
        self.call("cuInit", c_int(0))
        self.contexts = [c_void_p(), c_void_p()]
        self.streams = [c_void_p(), c_void_p()]
        for gpu in range(2):
            self.call("cuDevicePrimaryCtxRetain", byref(self.contexts[gpu]), c_int(gpu))
            self.use(gpu)
            self.call("cuStreamCreate", byref(self.streams[gpu]), c_int(1))

    def call(self, function: str, *arguments: Any) -> int:
        code = int(getattr(self.library, function)(*arguments))
        self.calls += 1
        if code:
            self.codes.append(f"{function} {code}, call {self.calls}")
        return code

    def use(self, gpu: int) -> None:
        self.call("cuCtxSetCurrent", self.contexts[gpu])

    def default_pool(self, gpu: int) -> c_void_p:
        pool = c_void_p()
        self.call("cuDeviceGetDefaultMemPool", byref(pool), c_int(gpu))
        return pool

    def made_pool(self, gpu: int) -> c_void_p:
        pool, properties = c_void_p(), PoolProperties(type=1, location=Location(1, gpu))
        self.call("cuMemPoolCreate", byref(pool), byref(properties))
        return pool

    def allow(self, pool: c_void_p, gpu: int) -> None:
        self.call("cuMemPoolSetAccess", pool, byref(Access(Location(1, gpu), READ_WRITE)), c_size_t(1))

    def allocate(self, pool: c_void_p, gpu: int) -> c_uint64:
        at = c_uint64()
        self.use(gpu)
        self.call("cuMemAllocFromPoolAsync", byref(at), c_size_t(BYTES), pool, self.streams[gpu])
        return at

    def fill(self, at: c_uint64, value: int, gpu: int) -> None:
        """By a kernel of this GPU, which needs access."""
        self.use(gpu)
        self.call("cuMemsetD8Async", at, c_ubyte(value), c_size_t(BYTES), self.streams[gpu])
        self.call("cuStreamSynchronize", self.streams[gpu])

    def holds(self, at: c_uint64, value: int, gpu: int) -> bool:
        bytes_ = (c_ubyte * BYTES)()
        self.use(gpu)
        self.call("cuMemcpyDtoH_v2", bytes_, at, c_size_t(BYTES))
        return bytes(bytes_) == bytes([value]) * BYTES

    def gpu_of(self, at: c_uint64) -> int:
        ordinal = c_int(-1)
        self.call("cuPointerGetAttribute", byref(ordinal), c_int(9), at)
        return ordinal.value

    def free(self, at: c_uint64, gpu: int) -> None:
        self.call("cuMemFreeAsync", at, self.streams[gpu])
        self.call("cuStreamSynchronize", self.streams[gpu])


def another_gpus_pool(pool_of: Callable[[Driver, int], c_void_p]) -> list[Any]:
    """GPU 1's pool on a stream of GPU 0, which may use that pool's memory."""
    driver = Driver()
    pool = pool_of(driver, 1)
    driver.allow(pool, 0)
    first = driver.allocate(pool, 0)
    found: list[Any] = [driver.gpu_of(first)]
    driver.fill(first, 7, 0)
    found.append(driver.holds(first, 7, 1))
    second = driver.allocate(pool, 1)
    found += [driver.gpu_of(second), first.value != second.value]
    driver.fill(second, 8, 1)
    found += [driver.holds(second, 8, 0), driver.holds(first, 7, 0)]
    driver.free(first, 0)
    driver.free(second, 1)
    return [*found, driver.codes]


def access_first(pool_of: Callable[[Driver, int], c_void_p]) -> list[Any]:
    """Access for GPU 1 is given before anything is allocated."""
    driver = Driver()
    pool = pool_of(driver, 0)
    driver.allow(pool, 1)
    at = driver.allocate(pool, 0)
    driver.fill(at, 1, 0)
    driver.fill(at, 9, 1)
    found: list[Any] = [driver.gpu_of(at), driver.holds(at, 9, 0), driver.holds(at, 9, 1)]
    # Memory that comes later, too.
    more = [driver.allocate(pool, 0) for _ in range(8)]
    for value, each in enumerate(more):
        driver.fill(each, value, 1)
    found += [driver.holds(each, value, 0) for value, each in enumerate(more)]
    for each in [at, *more]:
        driver.free(each, 0)
    return [*found, driver.codes]


def peer_first() -> list[Any]:
    """Peer access is enabled before anything is allocated, with `cuMemAlloc`."""
    driver = Driver()
    driver.use(1)
    driver.call("cuCtxEnablePeerAccess", driver.contexts[0], c_int(0))
    driver.use(0)
    blocks = [c_uint64() for _ in range(4)]
    found = []
    for value, at in enumerate(blocks):
        driver.use(0)
        driver.call("cuMemAlloc_v2", byref(at), c_size_t(BYTES))
        driver.fill(at, value, 1)
        found.append(driver.holds(at, value, 0))
    driver.use(0)
    for at in blocks:
        driver.call("cuMemFree_v2", at)
    return [*found, driver.codes]


def default_stream_order() -> list[Any]:
    """A copy to GPU 1 on its default stream comes after what GPU 0 was given on its own, as programs with one thread expect."""
    driver = Driver()
    size, tail, none = 8 << 30, 1 << 20, c_void_p()
    blocks, found = [c_uint64(), c_uint64()], []
    for gpu, length in ((0, size), (1, tail)):
        driver.use(gpu)
        driver.call("cuCtxEnablePeerAccess", driver.contexts[1 - gpu], c_int(0))
        driver.call("cuMemAlloc_v2", byref(blocks[gpu]), c_size_t(length))
    source = c_uint64(blocks[0].value + size - tail)
    for value in range(1, 9):
        driver.use(0)
        # Some milliseconds of work, of which the last part is what is copied.
        driver.call("cuMemsetD8Async", blocks[0], c_ubyte(value), c_size_t(size), none)
        driver.use(1)
        if value % 2:
            driver.call("cuMemcpyAsync", blocks[1], source, c_size_t(tail), none)
        else:
            driver.call("cuMemcpyDtoDAsync_v2", blocks[1], source, c_size_t(tail), none)
        driver.call("cuCtxSynchronize")
        bytes_ = (c_ubyte * tail)()
        driver.call("cuMemcpyDtoH_v2", bytes_, blocks[1], c_size_t(tail))
        found.append(bytes(bytes_) == bytes([value]) * tail)
        driver.use(0)
        driver.call("cuCtxSynchronize")
    return [*found, driver.codes]


DRIVER: dict[str, Callable[[], list[Any]]] = {
    "the default pool of another GPU": lambda: another_gpus_pool(Driver.default_pool),
    "a made pool of another GPU": lambda: another_gpus_pool(Driver.made_pool),
    "access before the first allocation, default pool": lambda: access_first(Driver.default_pool),
    "access before the first allocation, made pool": lambda: access_first(Driver.made_pool),
    "peer access before the first allocation": peer_first,
    "copies between GPUs on default streams": default_stream_order,
}


def captured_for_a_peer() -> list[Any]:
    """GPU 1 reads, by copies and by kernels, what a graph of GPU 0 works in: long blocks where short ones were."""
    import torch

    source = torch.zeros(1 << 20, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    torch.zeros(1, device="cuda:1")

    def work() -> list[Any]:
        kept = []
        for turn in range(4):
            short = [source + k for k in range(6)]
            total = torch.stack(short).sum(0)
            del short
            long = torch.cat([total, source, total, source, total, source + turn])
            kept.append(long.view(6, -1)[5] + total)
            del long, total
        return kept

    work()
    torch.cuda.synchronize(0)
    with torch.cuda.graph(graph):
        kept = work()
    right = []
    for index in range(5):
        source.fill_(float(index))
        graph.replay()
        for turn, each in enumerate(kept):
            there = each.to("cuda:1")
            strided = torch.empty(1 << 10, 1 << 10, device="cuda:1")
            strided.copy_(each.view(1 << 10, 1 << 10).t())
            expected = index + turn + 6.0 * index + 15
            right.append(bool((there == expected).all()) and bool((strided == expected).all()))
        # What GPU 1 writes is there for the next replay.
        source.copy_(torch.full((1 << 20,), -1.0, device="cuda:1"))
    return right


def empty_cache_elsewhere() -> list[Any]:
    """`empty_cache` while another GPU is current gives the memory of both back, and breaks no live tensor."""
    import torch

    live = [torch.full((3 << 20,), float(gpu), device=f"cuda:{gpu}") for gpu in (0, 1)]
    found: list[Any] = []
    for current in (0, 1):
        held = [torch.zeros(100 << 20, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in (0, 1) for _ in range(3)]
        del held
        before = [torch.cuda.memory_reserved(gpu) for gpu in (0, 1)]
        with torch.cuda.device(current):
            torch.cuda.empty_cache()
            found.append(torch.cuda.current_device() == current)
        after = [torch.cuda.memory_reserved(gpu) for gpu in (0, 1)]
        found += [was >= 300 << 20 and now < 40 << 20 for was, now in zip(before, after)]
        found += [bool((live[gpu] == gpu).all()) for gpu in (0, 1)]
        # And again from the memory that is left.
        more = [torch.full((50 << 20,), 3, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in (0, 1)]
        found += [bool((each == 3).all()) for each in more]
        del more
    return found


def empty_cache_of_one() -> list[Any]:
    """Where GPU 1 alone is used, `empty_cache` makes no context on GPU 0."""
    import torch

    torch.zeros(1 << 20, device="cuda:1")
    torch.cuda.empty_cache()
    return [torch.cuda.current_device(), bool(torch._C._cuda_hasPrimaryContext(0))]


def cupy_first_use() -> list[Any]:
    """A kernel of GPU 1, which has allocated nothing, works with arrays of GPU 0; then copies of what kernels have just written."""
    import warnings

    import cupy

    warnings.simplefilter("ignore")
    with cupy.cuda.Device(0):
        a, b = cupy.arange(1 << 20), cupy.zeros(1 << 20, dtype=cupy.int64)
        c = cupy.ones(1 << 20, dtype=bool)
    found: list[Any] = []

    def work() -> None:
        with cupy.cuda.Device(1):
            cupy.copyto(b, a, where=c)
            cupy.cuda.Device(1).synchronize()
        found.append(bool((cupy.asnumpy(b) == cupy.asnumpy(a)).all()))

    found.append(tried(work))
    return found


def cupy_copies() -> list[Any]:
    import warnings

    import cupy

    warnings.simplefilter("ignore")
    right = []
    for turn in range(60):
        with cupy.cuda.Device(0):
            long = cupy.full((1 << 26) + turn, float(turn), dtype=cupy.float64)
            source = (long * 2 + 1)[-1000:].copy()
        with cupy.cuda.Device(1):
            there = cupy.copy(source)
            right.append(bool((cupy.asnumpy(there) == 2.0 * turn + 1).all()))
        del long
    return [sum(right), len(right)]


CUPY: dict[str, Callable[[], list[Any]]] = {
    "CuPy: arrays of another GPU where this one has none": cupy_first_use,
    "CuPy: copies between GPUs of what was just computed": cupy_copies,
}
TORCH: dict[str, Callable[[], list[Any]]] = {
    "a graph's memory for a peer": captured_for_a_peer,
    "empty_cache with another GPU current": empty_cache_elsewhere,
    "empty_cache where one GPU is used": empty_cache_of_one,
}


def said_by(command: list[str], name: str, allocator: str) -> str:
    """What a case found."""
    try:
        done = subprocess.run(
            [*command, sys.executable, __file__, "--child", name, allocator], capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return found[0][6:] if found else f"status {done.returncode}: " + " / ".join(done.stderr.splitlines()[-3:])


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        name, allocator = sys.argv[2:]
        if name in TORCH:
            enable(allocator)
        elif allocator == "millpond":
            import millpond

            millpond.cupy.enable()
        found: list[Any] = []
        wrong = tried(lambda: found.extend({**DRIVER, **CUPY, **TORCH}[name]()))
        print("FOUND", found if wrong == "ok" else wrong, flush=True)
        return 0
    command = sys.argv[1] if len(sys.argv) > 1 else ".gpu/millpond"
    over: dict[str, tuple[list[str], str]] = {name: ([command, "run"], "native") for name in DRIVER}
    over |= {name: ([], "millpond") for name in (*CUPY, *TORCH)}
    different = 0
    with ThreadPoolExecutor(4) as threads:
        started = [
            (name, threads.submit(said_by, [], name, "native"), threads.submit(said_by, before, name, allocator))
            for name, (before, allocator) in over.items()
        ]
        for name, first, second in started:
            native, pooled = first.result(), second.result()
            is_equal = native == pooled and native.startswith("[")
            different += not is_equal
            what = f"equal: {native}" if is_equal else f"DIFFERENT OR BROKEN: natively {native}; over the pool {pooled}"
            print(f"{name}: {what}", flush=True)
    print(f"calls_on_two: {different} of {len(over)} are different, or broken natively")
    return 1 if different else 0


if __name__ == "__main__":
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    sys.exit(main())
