"""Two processes share a block: one fills it, the other one reads it in place. Nothing is copied between them.

On the CPU as a device; with the number of a GPU as the argument, on that GPU.
"""

import multiprocessing
import sys
from multiprocessing.connection import Connection

import millpond

COUNT = 1 << 20


def other_process(device: str, socket: Connection) -> None:
    pool = millpond.Pool(device)
    stream = pool.create_stream()
    # Work on the stream comes after what the first process gave its own before it shared the block.
    block, shared = pool.open_shared(socket, stream)
    mine = pool.allocate(block.size, stream)
    mine.copy_from(block)
    shared.record(stream)
    socket.send("copied")
    if device == "host":  # whose memory Python reads
        assert bytes(memoryview(mine)) == bytes(range(256)) * (COUNT // 256)
    assert socket.recv() == "done"


def main(device: str = "host") -> None:
    # A new process, and no fork: a GPU cannot be used after one.
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=other_process, args=(device, there))
    other.start()
    # Each block has pages of its own, so that the other process reaches nothing else.
    pool = millpond.Pool(device, page_sizes=("2MiB", "2MiB"), min_alignment="2MiB")
    stream = pool.create_stream()
    block = pool.allocate(COUNT, stream)
    if device == "host":
        memoryview(block)[:] = bytes(range(256)) * (COUNT // 256)
    with block.share() as shared:
        shared.send(here)
        assert here.recv() == "copied"
        shared.wait(stream)  # later work on the block comes after the other's copy
        block.free()
        print(f"{COUNT} bytes were shared, of {shared.exposed} that the other process could reach")
        here.send("done")
    other.join()
    assert other.exitcode == 0


if __name__ == "__main__":
    main(*sys.argv[1:2])
