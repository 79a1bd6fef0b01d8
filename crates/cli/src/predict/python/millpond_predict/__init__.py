"""What ``millpond predict`` begins each Python process of a program with: it waits for PyTorch, and then watches it.

The command preloads a CUDA runtime that does nothing (``crates/card``). So PyTorch finds the card that was named, its own
allocator serves the program, and no kernel runs. What is left for Python to do:

========== ==========================================================================================
file       concern
========== ==========================================================================================
recording  PyTorch's own history of its allocations, with a kind and a module for each, written at the end
watching   which module runs, in which phase; what parameters, gradients and the optimizer hold
kernels    operations of cuDNN: what they return, and the workspaces that were measured
values     what needs a value that nobody computed: an answer, or one clear message
settings   what the command asks for
========== ==========================================================================================

It uses nothing of the package ``millpond``, which need not be there.
"""

from __future__ import annotations

import sys
from typing import Any


class TorchImport:
    """Finds no module. Once PyTorch is loaded by the others, it is watched."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
                return spec
        return None


class Loader:
    """PyTorch's loader, with one step after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        from . import watching

        watching.begin()


def begin() -> None:
    """Waits for PyTorch."""
    sys.meta_path.insert(0, TorchImport())
