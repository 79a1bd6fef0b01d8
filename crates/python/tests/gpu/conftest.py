"""Tests that need a CUDA GPU: `pytest -m gpu`. Each file runs in a process of its own (scripts/gpu-python)."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
