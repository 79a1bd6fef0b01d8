"""Tests that need a CUDA GPU: `pytest -m gpu`. Each file runs in a process of its own (scripts/gpu-python)."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import millpond
import pytest

# Tests that several files run.
pytest.register_assert_rewrite("both")


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.fixture(scope="session")
def plug_in() -> None:
    """PyTorch reaches the pools by its hooks for allocators of others."""
    millpond.torch.enable(backend="plug-in")
    assert millpond.torch.backend() == "plug-in"


@pytest.fixture(scope="session")
def native_interface() -> None:
    """PyTorch reaches the pools by the interface of its own allocator; or has its own (tensors.py)."""
    from tensors import ALLOCATOR

    if ALLOCATOR == "native":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        millpond.torch.enable(backend="native-interface", pinned=True)
    assert millpond.torch.backend() == "native-interface"


@pytest.fixture
def nothing_is_broken() -> Iterator[None]:
    """The pool is whole after each test, and one test's tensors are not another's."""
    import torch

    gc.collect()
    yield
    gc.collect()
    torch.cuda.synchronize()
    if millpond.torch.is_enabled():
        millpond.pool(0).check()
