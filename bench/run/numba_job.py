"""Numba: kernels over arrays that come and go."""

import numpy
from numba import cuda


@cuda.jit
def add(array, value):
    at = cuda.grid(1)
    if at < array.size:
        array[at] += value


kept = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
for turn in range(50):
    passing = cuda.device_array(100_000 + turn * 1000, dtype=numpy.float32)
    add[1000, 256](passing, 1)
    add[4, 256](kept, 1)
print(f"numba: result {kept.copy_to_host().sum()}")
