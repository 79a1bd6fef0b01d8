"""RMM's asynchronous resource: buffers that come and go on two streams."""

import time

import numpy
import rmm
from rmm.pylibrmm.stream import Stream

resource = rmm.mr.CudaAsyncMemoryResource(initial_pool_size=1 << 20, release_threshold=1 << 30)
rmm.mr.set_current_device_resource(resource)
streams = [Stream(), Stream()]
random = numpy.random.default_rng(1)
kept: list[rmm.DeviceBuffer] = []
total, begin = 0, time.perf_counter()
for turn in range(4000):
    stream = streams[turn % 2]
    data = random.integers(0, 255, int(random.integers(1, 1 << 16)), numpy.uint8)
    buffer = rmm.DeviceBuffer(size=data.size, stream=stream)
    buffer.copy_from_host(numpy.ascontiguousarray(data), stream=stream)
    stream.synchronize()
    kept.append(buffer)
    if len(kept) > 200:
        gone = kept.pop(int(random.integers(len(kept))))
        total += int(gone.copy_to_host(stream=stream).sum(dtype=numpy.int64))
print(f"rmm async: result {total}, {time.perf_counter() - begin:.2f} s")
