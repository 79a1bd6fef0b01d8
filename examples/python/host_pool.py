"""A pool of one's own, on the CPU as a device: `python examples/python/host_pool.py`. With a GPU: Pool("cuda:0")."""

import millpond

MIB = 1 << 20

pool = millpond.Pool("host", name="example", hard_limit="64MiB")
stream = pool.create_stream()

# A block is freed in the order of its stream when it is dropped, or at the end of a `with`.
with pool.allocate(16 * MIB, stream) as block:
    print(f"{block.size} bytes at {block.ptr:#x}")

# The second time, memory is found ready.
block = pool.allocate(16 * MIB, stream)
figures = pool.stats()
assert (figures.hits, figures.misses) == (1, 1)

try:
    pool.allocate(60 * MIB, stream)
except millpond.OutOfMemoryError as error:
    print(error)

del block
stream.synchronize()
print(f"given back: {pool.trim() // MIB} MiB")
