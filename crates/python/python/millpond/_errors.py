"""What can go wrong. The messages say what to do next."""

from __future__ import annotations


class Error(RuntimeError):
    """Why a request was refused. Nothing changed then."""


class OutOfMemoryError(Error, MemoryError):
    """There is no memory for the request, after everything that could be given back was given back.

    The message says what was asked, what is live and cached, and what would help. PyTorch's tensors raise
    ``torch.OutOfMemoryError`` instead, with the same message. Figures are bytes.
    """

    #: Bytes asked for.
    requested: int
    #: Bytes in live blocks of the pool.
    live: int
    #: Bytes that the pool holds but that are in no live block.
    cached: int
    #: Physical bytes that the pool holds.
    reserved: int
    #: What stood in the way: ``"device"``, ``"hard_limit"``, ``"budget"`` or ``"headroom"``.
    what: str
    #: Bytes of that limit; ``None`` for the device.
    limit: int | None
    #: What would help, as one phrase.
    advice: str


class MisuseError(Error):
    """A block freed twice, an address of no block, a stream of another device, a pool that sleeps or was destroyed."""


class ForkedError(Error):
    """This process was forked from the one that made the pool.

    CUDA does not work after a fork: start the process with ``multiprocessing.get_context("spawn")``. On the CPU as a
    device, make a pool of the child's own.
    """


class DeviceError(Error):
    """The device is not there, or refused a call."""


class RecordingError(Error):
    """A recording or a snapshot cannot be written or read."""
