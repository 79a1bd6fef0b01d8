"""Shared blocks for whoever was given a name and a secret, which can be pickled. A block's descriptors cannot.

The process that shares has a Unix socket with a name of its own (an abstract one, so that no file is left), and a thread
that answers there. Who says a block's secret gets the block.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from typing import NamedTuple

from ._errors import Error
from ._millpond import Block, Pool, Shared

_SECRET_BYTES = 32
#: Seconds that one side waits for the other.
_PATIENCE = 30


class Offer(NamedTuple):
    """What another process needs to open a block."""

    name: bytes
    secret: bytes


class _Server:
    def __init__(self) -> None:
        self._offered: dict[bytes, Shared] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self.name = b"\0millpond-" + secrets.token_hex(16).encode()
        self._socket.bind(self.name)
        self._socket.listen()
        # A forked child has no thread that answers.
        os.register_at_fork(after_in_child=self._socket.close)
        threading.Thread(target=self._serve, name="millpond-offers", daemon=True).start()

    def offer(self, shared: Shared) -> Offer:
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._offered[secret] = shared
        return Offer(self.name, secret)

    def take_back(self, offer: Offer) -> None:
        self._offered.pop(offer.secret, None)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # out of descriptors, for example
                time.sleep(0.01)
                continue
            # Who is slow keeps nobody else waiting.
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(Error, OSError):
            _limit(connection)
            shared = self._offered.get(connection.recv(_SECRET_BYTES, socket.MSG_WAITALL))
            if shared is not None:
                shared.send(connection)


#: By process: that of a parent stayed there.
_servers: dict[int, _Server] = {}


def _server() -> _Server:
    here = os.getpid()
    # Of two threads that come here at once, the second one's gets no offers.
    return _servers.get(here) or _servers.setdefault(here, _Server())


def _limit(connection: socket.socket) -> None:
    """Ends waits on a socket that blocks for the rest."""
    patience = struct.pack("ll", _PATIENCE, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, patience)


def make(shared: Shared) -> Offer:
    """Offers a block that this process shares, until :func:`take_back`."""
    return _server().offer(shared)


def take_back(offer: Offer) -> None:
    """Ends an offer. Who opened the block has it still."""
    _server().take_back(offer)


def open_offer(offer: Offer, pool: Pool) -> tuple[Block, Shared]:
    """Opens the block that another process offers, for work on the default stream."""
    with socket.socket(socket.AF_UNIX) as connection:
        _limit(connection)
        try:
            connection.connect(offer.name)
            connection.sendall(offer.secret)
            return pool.open_shared(connection)
        except (Error, OSError) as error:
            raise Error(
                f"the memory of another process could not be opened ({error}): it must be there, and keep its array, until "
                "this process has it"
            ) from error
