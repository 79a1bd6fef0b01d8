"""Blocks for processes that were handed a string: who is answered, who is not, and what keeps nobody waiting."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import millpond
import pytest
from millpond import _millpond

MIB = 1 << 20
#: Connections that are answered at once, and bytes of a request.
PLACES, REQUEST = 16, 24

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Offer:
    """A block with these first bytes, which is offered."""

    def __init__(self, pool: millpond.Pool) -> None:
        self.pool, self.stream = pool, pool.create_stream()
        self.block = pool.allocate(MIB)
        with memoryview(self.block) as mine:
            mine[:4] = b"true"
        self.handle = _millpond.offer(self.block, self.stream)
        _, _, name, secret, number = self.handle.split("/")
        self.name = f"\0millpond-offers-{name}".encode()
        self.request = int(secret, 16).to_bytes(16, "little") + int(number, 16).to_bytes(8, "little")

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.name)
        return connection

    def opens(self) -> None:
        block, shared = _millpond.open_offer(millpond.Pool("host"), self.handle)
        assert bytes(memoryview(block)[:4]) == b"true"
        block.free()
        shared.close()


@pytest.fixture
def offer() -> Iterator[Offer]:
    offer = Offer(millpond.Pool("host"))
    yield offer
    _millpond.withdraw(offer.block)


def test_a_block_has_one_offer_until_that_is_withdrawn(offer: Offer) -> None:
    offer.opens()
    assert _millpond.offer(offer.block, offer.stream) == offer.handle
    _millpond.withdraw(offer.block)
    with pytest.raises(millpond.Error, match="cannot be opened: the memory was freed there"):
        offer.opens()
    again = _millpond.offer(offer.block, offer.stream)
    assert again != offer.handle
    with pytest.raises(millpond.Error, match="was freed there"):
        offer.opens()
    offer.block.free()
    with pytest.raises(millpond.MisuseError, match="freed already"):
        _millpond.offer(offer.block, offer.stream)


def test_a_block_that_was_freed_without_a_word_is_not_sent(offer: Offer) -> None:
    offer.block.free()
    with pytest.raises(millpond.Error, match="cannot be opened"):
        offer.opens()


def test_who_does_not_know_the_secret_gets_nothing(offer: Offer) -> None:
    for said in (b"", b"short", bytes(REQUEST), offer.request[:-1], b"\1" + offer.request[1:]):
        with offer.connect() as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) in (b"", b"\1")
            assert connection.recv(100) == b""


def test_handles_of_nobody_are_told(offer: Offer) -> None:
    for handle in ("", "millpond/1/0/0/0", "millpond/2/0/0", offer.handle + "/0", offer.handle + "x"):
        with pytest.raises(millpond.Error, match="of another version of millpond"):
            _millpond.open_offer(offer.pool, handle)
    with pytest.raises(millpond.Error, match="does not answer"):
        _millpond.open_offer(offer.pool, f"millpond/2/{0:016x}/{0:032x}/0")


def test_a_slow_client_keeps_nobody_waiting(offer: Offer) -> None:
    """It goes on as long as the other waits."""
    done = threading.Event()

    def trickle() -> None:
        while not done.is_set():
            with offer.connect() as slow:
                for byte in offer.request[:-1]:
                    if not done.wait(1):
                        slow.sendall(bytes([byte]))

    threads = [threading.Thread(target=trickle) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            offer.opens()
    finally:
        done.set()
        for thread in threads:
            thread.join()


def threads_that_answer() -> int:
    found = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it ended
            found += Path(f"/proc/self/task/{task}/comm").read_text() == "millpond offer\n"
    return found


def test_connections_have_one_deadline_and_few_threads(offer: Offer) -> None:
    slow = [offer.connect() for _ in range(PLACES + 4)]
    time.sleep(1)
    assert threads_that_answer() <= PLACES
    sent = 0
    with pytest.raises(OSError, match="Broken pipe|reset"):
        # One byte a second would take longer than a connection may.
        for sent, byte in enumerate(offer.request):
            slow[0].sendall(bytes([byte]))
            time.sleep(1)
    assert sent < REQUEST - 1
    offer.opens()
    for connection in slow:
        connection.close()


BEGIN = """
import ctypes, os, socket, sys, threading, time
import millpond
from millpond import _millpond
pool, other = millpond.Pool("host"), millpond.Pool("host")
block, stream = pool.allocate(1 << 20), pool.create_stream()
NOBODY = 65534
"""


def run(program: str, **environment: str) -> str:
    """Runs a program in a process of its own, which must end."""
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@as_root
def test_other_users_are_dropped_though_they_know_the_secret() -> None:
    run("""
_, _, name, secret, number = _millpond.offer(block, stream).split("/")
child = os.fork()
if child == 0:
    os.setuid(NOBODY)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\\0millpond-offers-{name}")
    try:
        connection.sendall(int(secret, 16).to_bytes(16, "little") + int(number, 16).to_bytes(8, "little"))
        found = connection.recv(100)
    except (BrokenPipeError, ConnectionResetError):
        found = b""
    os._exit(len(found))
assert os.waitpid(child, 0)[1] == 0, "it was answered"
""")


@as_root
def test_the_secret_is_not_said_to_other_users() -> None:
    run("""
name = os.urandom(8).hex()
ready, there = os.pipe()
child = os.fork()
if child == 0:
    os.setuid(NOBODY)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\\0millpond-offers-{name}")
    listener.listen()
    os.write(there, b".")
    os._exit(len(listener.accept()[0].recv(100)))
os.read(ready, 1)
try:
    _millpond.open_offer(other, f"millpond/2/{name}/{1:032x}/0")
    raise SystemExit("it was opened")
except millpond.Error as error:
    assert f"user {NOBODY} answers in the place of its process, and this is user 0" in str(error), error
assert os.waitpid(child, 0)[1] == 0, "the secret was said"
""")


@pytest.fixture(scope="module")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        if os.environ.get("MILLPOND_REQUIRE_TOOLS"):
            raise AssertionError("no g++ here, and MILLPOND_REQUIRE_TOOLS is set")
        pytest.skip("no g++ here")
    library = tmp_path_factory.mktemp("pauses") / "pauses.so"
    source = Path(__file__).parent / "cpp/pauses.c"
    flags = ["-x", "c", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    return str(library)


def test_a_block_can_be_freed_while_it_is_being_sent(pauses: str) -> None:
    run(
        """
pauses = ctypes.CDLL(None)
holds, is_held = (ctypes.c_int.in_dll(pauses, name) for name in ("holds_sends", "is_held"))
with memoryview(block) as mine:
    mine[:4] = b"true"
handle = _millpond.offer(block, stream)
holds.value = 1
opened = []
opening = threading.Thread(target=lambda: opened.append(_millpond.open_offer(other, handle)))
opening.start()
while not is_held.value:
    time.sleep(0.01)
_millpond.withdraw(block)
block.free()
assert not _millpond.offer(pool.allocate(1 << 20), stream) == handle
holds.value = 0
opening.join()
assert bytes(memoryview(opened[0][0])[:4]) == b"true"
""",
        LD_PRELOAD=pauses,
    )


@pytest.mark.parametrize("moment", ["while it begins to listen", "later"])
def test_a_forked_child_does_not_listen_in_its_parents_place(pauses: str, moment: str) -> None:
    program = """
pauses = ctypes.CDLL(None)
at_bind = ctypes.c_int.in_dll(pauses, "forks_at_bind")
at_bind.value = sys.argv[1] != "later"
handle = _millpond.offer(block, stream)
child = os.fork() if sys.argv[1] == "later" else pauses.forked()
if child == 0:
    time.sleep(600)
print(handle, child, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + program, moment]
    environment = {**os.environ, "LD_PRELOAD": pauses}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        handle, child = owner.stdout.readline().split()
        try:
            block, shared = _millpond.open_offer(millpond.Pool("host"), handle)
            owner.kill()
            owner.wait()
            with pytest.raises(millpond.Error, match="its process does not answer"):
                _millpond.open_offer(millpond.Pool("host"), handle)
            block.free()
        finally:
            os.kill(int(child), signal.SIGKILL)
            owner.kill()
