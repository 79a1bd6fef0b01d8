"""Batches go through pinned memory, which NumPy uses in place: `python examples/python/pinned.py`. Needs NumPy.

On the first GPU, or on the CPU as a device.
"""

import millpond
import numpy

BYTES = 4 << 20
BATCHES = 8

try:
    pool = millpond.Pool(0)
except millpond.DeviceError:
    pool = millpond.Pool("host")  # no GPU
pinned = millpond.Pool(pool.device, memory="pinned", hard_limit="64MiB")
upload, download = pool.create_stream(), pool.create_stream()
pinned.reserve(2 * BYTES, upload)  # the driver is slow with pinned memory

staging, results = pinned.allocate(BYTES, upload), pinned.allocate(BYTES, download)
inputs = pool.allocate(BYTES, upload)
source = numpy.asarray(staging).view(numpy.float32)
for batch in range(BATCHES):
    staging.synchronize()  # the last batch has been read
    source[:] = numpy.arange(source.size) + batch
    inputs.copy_from(staging)  # the host does not wait
    # … kernels of another library, on `upload` …
    results.copy_from(inputs)  # nor here: `download` waits for `upload`
    result = numpy.asarray(results).view(numpy.float32)  # here it waits
    assert (result == source).all()
print(f"{BATCHES} batches of {BYTES >> 20} MiB through {pinned}")
