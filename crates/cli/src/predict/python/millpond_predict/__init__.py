"""What ``millpond predict`` begins each Python process of a program with: it waits for PyTorch, and then watches it.

The command preloads a CUDA runtime that does nothing (``crates/card``). So PyTorch finds the card that was named, its own
allocator serves the program, and no kernel runs. What is left for Python to do:

========== ==========================================================================================
file       concern
========== ==========================================================================================
recording  PyTorch's own history of its allocations, with a kind and a module for each, written at the end
watching   which module runs, in which phase; what parameters, gradients and the optimizer hold
kernels    operations of cuDNN: what they return, and the workspaces that were measured
libraries  what cuFFT, cuSOLVER and cuSPARSE are taken to work in
values     what needs a value that nobody computed: an answer, or one clear message
counts     stand-ins for whole numbers, which count and print
allocator  what the program asks of PyTorch's allocator, and is left out
settings   what the command asks for
========== ==========================================================================================

It uses nothing of the package ``millpond``, which need not be there.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any


def watch_torch(_module: Any) -> None:
    from . import watching

    watching.begin()


def watch_generation(module: Any) -> None:
    from . import generation, settings

    if not settings.REAL:
        generation.begin(module)


def watch_millpond(module: Any) -> None:
    from . import allocator, settings

    if not settings.REAL:
        allocator.begin_millpond(module)


def watch_safetensors(module: Any) -> None:
    """It renames files past the C library, which does not find those that go to a folder of their own. So Python writes them."""
    from . import settings

    if settings.REAL:
        return

    def field(tensor: Any, name: str) -> Any:
        return tensor.get(name) if isinstance(tensor, dict) else getattr(tensor, name, None)

    def size(tensor: Any) -> int:
        """Bytes of an element: larger ones are first, so that each tensor is aligned."""
        length = field(tensor, "data_len")
        return (len(field(tensor, "data")) if length is None else length) // max(1, math.prod(field(tensor, "shape")))

    def serialize_file(tensor_dict: Any, filename: Any, metadata: Any = None) -> None:
        names = sorted(tensor_dict, key=lambda name: (-size(tensor_dict[name]), name))
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        # Room for the header: what it says of each tensor is known once that is written.
        room = 1024 + 2 * len(json.dumps(header)) + sum(len(json.dumps(name)) + 512 for name in names)
        room -= room % 8
        path = os.fspath(filename)
        with open(f"{path}.part", "wb") as file:
            file.seek(8 + room)
            begin = 0
            for name in names:
                # One tensor at a time, so that there is no copy of all in memory.
                whole = module.serialize({name: tensor_dict[name]}, None)
                start = 8 + int.from_bytes(whole[:8], "little")
                header[name] = json.loads(whole[8:start])[name]
                end = begin + file.write(memoryview(whole)[start:])
                header[name]["data_offsets"] = [begin, end]
                begin = end
            file.seek(0)
            file.write(room.to_bytes(8, "little") + json.dumps(header).encode().ljust(room))
        os.replace(f"{path}.part", path)

    module.serialize_file = serialize_file
    rust = sys.modules.get("safetensors._safetensors_rust")
    if rust is not None:
        rust.serialize_file = serialize_file  # type: ignore[attr-defined]


#: What is done once a module is loaded.
AFTER = {
    "torch": watch_torch,
    "transformers.generation.utils": watch_generation,
    "millpond.torch": watch_millpond,
    "safetensors": watch_safetensors,
}


class Imports:
    """Finds no module. Once one of these is loaded by the others, it is looked at."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in AFTER:
            return None
        # A program may only ask whether there is such a module. It is waited for until it is loaded.
        for finder in list(sys.meta_path):
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, name)
                return spec
        return None


class Loader:
    """Another loader, with one step after it."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader, self._name = loader, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        if self._name == "torch":
            from . import allocator

            allocator.leave_environment_out()
        self._loader.exec_module(module)
        after = AFTER.pop(self._name, None)
        if after is not None:
            after(module)


def begin() -> None:
    """Waits for PyTorch."""
    sys.meta_path.insert(0, Imports())
