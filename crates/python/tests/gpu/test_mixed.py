"""PyTorch, CuPy and RMM in one process, over one pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytest.importorskip("rmm")
pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[4] / "examples/python/mixed.py"


def test_libraries_over_one_pool_need_less_memory_than_with_a_pool_each() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
