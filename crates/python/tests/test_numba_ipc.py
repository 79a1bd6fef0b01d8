"""Numba's IPC handles: pickled, sent to another process, and opened there in place. Numba itself is not needed."""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import fakes
import millpond
import pytest
from millpond import _millpond

MIB = 1 << 20


def prepare() -> Any:
    """A context of Numba, with millpond as its manager, over the CPU as a device."""
    cuda = fakes.install_numba()
    if 0 not in _millpond.devices_in_use():
        _millpond.stand_in(0, millpond.Pool("host"))
    millpond.numba.enable()
    return cuda.current_context()


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import sys

    before = dict(sys.modules)
    yield prepare()
    for name in [name for name in sys.modules if name.split(".")[0] == "numba"]:
        del sys.modules[name]
    sys.modules.update({name: module for name, module in before.items() if name.split(".")[0] == "numba"})


def text(memory: Any) -> Any:
    """The bytes. The CPU as a device has its memory where the host finds it."""
    millpond.pool(0).synchronize()
    return (ctypes.c_char * memory.size).from_address(memory.device_ctypes_pointer.value)


def opens(pipe: Connection) -> None:
    context = prepare()
    handle: Any = pipe.recv()
    memory = handle.open(context)
    with pytest.raises(ValueError, match="already opened"):
        handle.open(context)
    found = text(memory)
    pipe.send(found.raw)
    found[0:5] = b"there"
    pipe.send("written")
    assert pipe.recv() == "freed"
    pipe.send(found.raw[:5])
    handle.close()
    with pytest.raises(ValueError, match="not opened"):
        handle.close()
    array = pipe.recv().open_array(context, shape=(3,), dtype=Dtype())
    pipe.send((array.shape, array.strides, text(array.gpu_data).raw))
    with pytest.raises(millpond.Error, match="was freed there"):
        pipe.recv().open(context)
    pipe.send("done")


class Dtype:
    itemsize = 1


def test_a_handle_opens_the_memory_in_another_process(context: Any) -> None:
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    other = processes.Process(target=opens, args=(there,))
    other.start()
    manager = context.memory_manager
    memory = manager.memalloc(3 * MIB)
    text(memory)[100:110] = b"0123456789"
    part = memory.view(100, 110)
    handle = manager.get_ipc_handle(part)
    assert (handle.size, handle.offset) == (10, 100)
    with pytest.raises(ValueError, match="this one has the array"):
        handle.open(context)
    here.send(handle)
    assert here.recv() == b"0123456789"
    assert here.recv() == "written"
    assert text(memory)[100:105] == b"there"
    # It stays while the other has it.
    used = millpond.pool(0).stats().blocks.current
    del memory, part, handle
    assert millpond.pool(0).stats().blocks.current == used
    here.send("freed")
    assert here.recv() == b"there"
    again = manager.memalloc(1000)
    text(again)[0:3] = b"abc"
    handle = manager.get_ipc_handle(again.view(0, 3))
    here.send(handle)
    assert here.recv() == ((3,), 1, b"abc")
    gone = manager.memalloc(1000)
    pickled = manager.get_ipc_handle(gone)
    late = pickle.loads(pickle.dumps(pickled))
    del gone, pickled
    here.send(late)
    assert here.recv() == "done"
    other.join(60)
    assert other.exitcode == 0
    del again, handle
    millpond.pool(0).check()


def test_memory_of_others_has_no_handle(context: Any) -> None:
    foreign = fakes.MemoryPointer(context, ctypes.c_void_p(0x1000), 10)
    with pytest.raises(ValueError, match="0x1000 is no memory of millpond"):
        context.memory_manager.get_ipc_handle(foreign)
    nothing = [context.memory_manager.memalloc(0) for _ in range(3)]
    del nothing
    millpond.pool(0).check()
