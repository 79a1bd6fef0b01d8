"""CuPy over matrices of changing size, with one of its allocators: ``async``, ``none`` (cudaMalloc), or ``default``."""

import random
import sys
import time

import cupy

how = sys.argv[1]
if how == "async":
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
elif how == "none":
    cupy.cuda.set_allocator(None)
numbers = cupy.random.RandomState(1)
random.seed(3)
total, begin = 0.0, 0.0
for step in range(300):
    if step == 20:
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
    size = random.randint(100, 3000)
    matrix = numbers.rand(size, size, dtype=cupy.float32)
    ordered = cupy.sort(matrix @ matrix.T, axis=1)[:, : size // 2]
    total += float((ordered * 2 + matrix[:, : size // 2]).sum())
cupy.cuda.Device().synchronize()
print(f"cupy {how}: result {total!r}, {time.perf_counter() - begin:.2f} s")
