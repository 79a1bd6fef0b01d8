"""Blocks that several processes use."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import millpond
import pytest

MIB = 1 << 20
EXAMPLES = Path(__file__).parents[3] / "examples" / "python"


def doubles(pipe: Connection) -> None:
    pool = millpond.Pool("host")
    stream = pool.create_stream()
    block, shared = pool.open_shared(pipe, stream)
    with memoryview(block) as found:
        found[:] = bytes(2 * byte % 256 for byte in found)
    shared.record(stream)
    pipe.send("doubled")
    pipe.recv()


def test_two_processes_write_to_one_block() -> None:
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=doubles, args=(there,))
    other.start()
    pool = millpond.Pool("host")
    stream = pool.create_stream()
    block = pool.allocate(1000, stream)
    with memoryview(block) as mine:
        mine[:] = bytes(range(250)) * 4
    with block.share() as shared:
        shared.send(here)
        assert here.recv() == "doubled"
        shared.wait(stream)
        stream.synchronize()
        assert bytes(memoryview(block)) == bytes(2 * byte % 256 for byte in range(250)) * 4
        here.send("done")
    other.join(60)
    assert other.exitcode == 0


def test_the_example_runs() -> None:
    program = [sys.executable, str(EXAMPLES / "sharing.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1048576 bytes were shared, of 2097152" in done.stdout


@pytest.fixture
def sockets() -> Any:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_block_stays_until_the_last_process_is_done(sockets: Any) -> None:
    pool, other = millpond.Pool("host"), millpond.Pool("host")
    block = pool.allocate(4 * MIB)
    with memoryview(block) as mine:
        mine[:4] = b"true"
    shared = block.share()
    assert shared.exposed >= 4 * MIB and repr(shared) == "<millpond.Shared of this process>"
    shared.send(sockets[0])
    opened, theirs = other.open_shared(sockets[1])
    assert (opened.size, theirs.exposed, repr(theirs)) == (4 * MIB, 0, "<millpond.Shared of another process>")
    block.free()
    shared.close()
    assert pool.stats().allocated.current == 4 * MIB
    assert bytes(memoryview(opened)[:4]) == b"true"
    opened.free()
    theirs.close()
    for _ in range(2):
        pool.synchronize()
        other.synchronize()
    pool.trim()
    assert pool.stats().allocated.current == 0


def test_mistakes_are_told(sockets: Any) -> None:
    pool = millpond.Pool("host")
    block = pool.allocate(1000)
    with pytest.raises(millpond.MisuseError, match="only a device's own memory"):
        millpond.Pool("host", memory="pinned").allocate(1000).share()
    with pytest.raises(millpond.MisuseError, match="no bytes"):
        pool.allocate(0).share()
    shared = block.share()
    nonsense: Any = "a socket"
    with pytest.raises(TypeError, match="a connected Unix socket is expected, not str"):
        shared.send(nonsense)
    shared.send(sockets[0])
    opened, theirs = pool.open_shared(sockets[1])
    with pytest.raises(millpond.MisuseError, match="the process that shared it sends it"):
        theirs.send(sockets[0])
    shared.close()
    with pytest.raises(millpond.MisuseError, match="closed already"):
        shared.record()
    sockets[0].sendall(b"not a block at all")
    with pytest.raises(millpond.Error, match="no token"):
        pool.open_shared(sockets[1])
    sockets[0].close()
    with pytest.raises(ValueError, match="closed"):
        pool.open_shared(sockets[0])
    opened.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        opened.share()


def test_a_signal_ends_the_wait_for_a_block() -> None:
    program = """
import millpond, os, signal, socket, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # where a shell ignores it for what it starts
pool, (ours, theirs) = millpond.Pool("host"), socket.socketpair()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    pool.open_shared(theirs)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "interrupted\n", done.stderr
