"""PyTorch, CuPy and RMM work in turn in one process, under one limit. With a pool for each they run out of memory; with one
pool for all they do not.

    python mixed.py         both, each in a process of its own: needs a GPU, PyTorch, CuPy and RMM

Each library in turn allocates 55 % of the limit in blocks, and keeps one block of five for the others to read. A library's
own pool keeps the rest for itself: each of its segments holds a kept block. Before each turn all pools give back what they
can, and the library may then use what the others have left of the limit. Millpond's pool remaps the free pages instead.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

LIMIT = 2 << 30
BLOCK = 4 << 20
KEPT_OF = 5
#: PyTorch comes twice: it also finds what the others left.
TURNS = ("torch", "cupy", "rmm", "torch")
BLOCKS = int(0.55 * LIMIT) // BLOCK


class PyTorch:
    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.total = torch.cuda.mem_get_info()[1]

    def held(self) -> int:
        return int(self.torch.cuda.memory_reserved())

    def give_back(self) -> None:
        self.torch.cuda.empty_cache()

    def limit(self, size: int) -> None:
        self.torch.cuda.set_per_process_memory_fraction(size / self.total)

    def block(self, value: int) -> Any:
        return self.torch.full((BLOCK,), value, dtype=self.torch.uint8, device="cuda")


class CuPy:
    def __init__(self) -> None:
        import cupy

        self.cupy, self.pool = cupy, cupy.get_default_memory_pool()

    def held(self) -> int:
        return int(self.pool.total_bytes())

    def give_back(self) -> None:
        self.pool.free_all_blocks()

    def limit(self, size: int) -> None:
        self.pool.set_limit(size=size)

    def block(self, value: int) -> Any:
        return self.cupy.full(BLOCK, value, dtype=self.cupy.uint8)


class Rmm:
    def __init__(self) -> None:
        import cupy
        import rmm

        self.cupy, self.rmm, self.upstream = cupy, rmm, None

    def held(self) -> int:
        return self.upstream.get_allocated_bytes() if self.upstream else 0

    def give_back(self) -> None:
        """RMM's pool keeps what it has."""

    def limit(self, size: int) -> None:
        mr = self.rmm.mr
        self.upstream = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), size)
        mr.set_current_device_resource(mr.PoolMemoryResource(self.upstream, initial_pool_size=BLOCK))

    def block(self, value: int) -> Any:
        buffer = self.rmm.DeviceBuffer(size=BLOCK)
        self.cupy.asarray(buffer)[...] = value
        return buffer


def work(pools: str) -> None:
    """Takes all turns, and prints how that ended."""
    if pools == "one":
        import millpond

        millpond.torch.enable(hard_limit=LIMIT)
        millpond.cupy.enable()
        millpond.rmm.enable()
    import cupy

    libraries: dict[str, Any] = {"torch": PyTorch(), "cupy": CuPy(), "rmm": Rmm()}
    kept: list[tuple[Any, int]] = []
    for number, name in enumerate(TURNS):
        library = libraries[name]
        if pools == "own":
            for each in libraries.values():
                each.give_back()
            library.limit(LIMIT - sum(each.held() for each in libraries.values() if each is not library))
        try:
            blocks = [(library.block((number + at) % 256), (number + at) % 256) for at in range(BLOCKS)]
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            held = ", ".join(f"{each} holds {of.held() >> 20} MiB" for each, of in libraries.items())
            print(f"out of memory in turn {number + 1}, {name}; {held}")
            return
        kept += blocks[::KEPT_OF]
        del blocks
    # Each block is read by another library than wrote it, except CuPy's.
    for block, value in kept:
        array = cupy.asarray(block)
        assert int(array.min()) == int(array.max()) == value
    if pools == "one":
        pool = millpond.pool(0)
        assert pool.stats().reserved.high <= LIMIT
        pool.check()
    print(f"all {len(TURNS)} turns; {len(kept)} kept blocks have their bytes")


def main() -> None:
    if sys.argv[1:]:
        work(sys.argv[1])
        return
    ends = {}
    for pools, said in (("own", "a pool for each library"), ("one", "one pool for all")):
        done = subprocess.run([sys.executable, __file__, pools], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        ends[pools] = done.stdout.strip().splitlines()[-1]
        print(f"{said}: {ends[pools]}")
    assert ends["own"].startswith("out of memory"), "each library's own pool was enough"
    assert ends["one"].startswith("all"), "one pool was not enough"


if __name__ == "__main__":
    main()
