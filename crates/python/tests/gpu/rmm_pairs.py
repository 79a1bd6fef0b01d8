"""What a pair of allocation and free costs from RMM's C++: `scripts/gpu-rmm` runs this with the library that it built.

Prints a table. Ends with status 1 where a pair with millpond takes more than is promised.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable

import millpond
import rmm
from rmm.pylibrmm.cuda_stream_pool import CudaStreamPool

#: Nanoseconds a pair at most, on the default stream and on registered ones.
MOST = 60
SIZES = (512, 64 << 10, 1 << 20, 64 << 20)


def main() -> int:
    library = ctypes.CDLL(sys.argv[1])
    library.rmm_pair_ns.restype = ctypes.c_double
    library.rmm_pair_ns.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pool, registered = CudaStreamPool(2), CudaStreamPool(2)
    millpond.rmm.register(registered, 0)
    streams = {
        "default stream": 0,
        "registered stream": registered.get_stream(0).__cuda_stream__()[1],
        "stream of a pool": pool.get_stream(0).__cuda_stream__()[1],
        "default stream of the thread": 2,
    }
    resources: dict[str, Callable[[], Any]] = {
        "millpond": lambda: millpond.rmm.resource(0),
        "RMM's pool": lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30),
        "RMM's cuda_async": rmm.mr.CudaAsyncMemoryResource,
    }
    slow = []
    print("| resource | stream | " + " | ".join(f"{size:,} B" for size in SIZES) + " |")
    print("| --- | --- |" + " --- |" * len(SIZES))
    for name, make in resources.items():
        rmm.mr.set_per_device_resource(0, make())
        for stream, handle in streams.items():
            cells = [library.rmm_pair_ns(0, handle, size, 20_000) for size in SIZES]
            print(f"| {name} | {stream} | " + " | ".join(f"{cell:.1f} ns" for cell in cells) + " |", flush=True)
            promised = name == "millpond" and stream in ("default stream", "registered stream")
            if min(cells) < 0 or (promised and max(cells) > MOST):
                slow.append(f"{name}, {stream}")
    if slow:
        print(f"rmm_pairs: more than {MOST} ns: {'; '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
