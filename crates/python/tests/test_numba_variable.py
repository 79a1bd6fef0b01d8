"""Numba's own way to a memory manager: the module that NUMBA_CUDA_MEMORY_MANAGER names. Numba itself is not needed."""

from __future__ import annotations

import importlib

import fakes
import millpond
import pytest
from millpond import _millpond


def test_numba_finds_the_manager_in_the_module_that_its_variable_names() -> None:
    cuda = fakes.install_numba()
    if 0 not in _millpond.devices_in_use():
        _millpond.stand_in(0, millpond.Pool("host"))
    # As Numba does it.
    module = importlib.import_module("millpond.numba")
    cuda.set_memory_manager(module._numba_memory_manager)
    manager = cuda.current_context().memory_manager
    before = millpond.pool(0).stats().blocks.current
    memory = manager.memalloc(1000)
    assert manager.interface_version == 1 and millpond.pool(0).stats().blocks.current == before + 1
    del memory
    assert millpond.pool(0).stats().blocks.current == before
    with pytest.raises(AttributeError, match="no attribute '_another'"):
        module._another
