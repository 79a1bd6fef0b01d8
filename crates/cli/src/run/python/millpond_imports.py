"""Gives PyTorch, CuPy, RMM and Numba the pools of the package ``millpond`` as soon as the program has imported them.

``MILLPOND_TORCH=1``, ``MILLPOND_CUPY=1``, ``MILLPOND_RMM=1`` and ``MILLPOND_NUMBA=1`` ask for it. ``millpond run`` sets them. A program
that imports none of these pays for a look at the names of its imports: the package is not imported before.

It uses nothing of the package, which need not be there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

#: The module whose import is waited for, the variable that asks for it, and the library's name.
LIBRARIES = {
    "torch": ("MILLPOND_TORCH", "PyTorch"),
    "cupy": ("MILLPOND_CUPY", "CuPy"),
    "rmm": ("MILLPOND_RMM", "RMM"),
    "numba.cuda": ("MILLPOND_NUMBA", "Numba"),
}


class Account:
    """What is told at the end: beside the file of the preloaded library, one of the package's pools."""

    def __init__(self) -> None:
        self.libraries: list[str] = []
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)
        print(f"millpond: {text}", file=sys.stderr)

    def enabled(self, library: str) -> None:
        if not self.libraries:
            import atexit

            atexit.register(self.write)
        self.libraries.append(library)

    def write(self) -> None:
        import json

        from millpond import _millpond

        accounts = os.environ.get("MILLPOND_RUN_ACCOUNTS")
        if not accounts:
            return
        stats = {gpu: _millpond.device_pool(gpu).stats() for gpu in _millpond.devices_in_use()}
        nothing = {"allocations": 0, "bytes": 0, "peak": 0}
        account = {
            "pid": os.getpid(),
            "program": os.path.basename(os.path.realpath(sys.executable)),
            "mode": "pool",
            "libraries": self.libraries,
            "pools": [pool(gpu, figures) for gpu, figures in stats.items()],
            "outside": {**dict.fromkeys(("plain", "managed", "pages", "pinned"), nothing), "peak": 0, "refused": 0},
            "said": self.said,
        }
        # As the preloaded library writes it: a slot of the file, whose first of two texts is whole.
        slot = (1).to_bytes(4, sys.byteorder).ljust(64, b"\0") + json.dumps(account).encode()
        if len(slot) >= 16 << 10:
            return
        try:
            with open(accounts, "ab", buffering=0) as file:
                file.write(slot.ljust(16 << 10, b"\0"))
        except OSError:
            # The command is gone.
            pass


def pool(gpu: int, stats: Any) -> dict[str, int]:
    """A pool's figures, by the names that the preloaded library gives them."""
    calls = stats.as_dict()["calls"]
    return {
        "gpu": gpu,
        "held": stats.reserved.current,
        "held_peak": stats.reserved.high,
        "allocated_peak": stats.allocated.high,
        "requested": stats.requested.current,
        "requested_peak": stats.requested.high,
        "allocations": stats.allocations,
        "frees": stats.frees,
        "hits": stats.hits,
        "device_calls": sum(calls[name] for name in ("create", "map", "unmap", "release", "alloc", "free")),
        "out_of_memory": stats.out_of_memory,
    }


class MillpondImports:
    """Finds no module. It has the libraries enabled once the other finders' loader has loaded them."""

    def __init__(self, wanted: dict[str, str]) -> None:
        self.wanted = wanted
        self.account = Account()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted:
            return None
        # A program may only ask whether there is such a module. It is waited for until it is loaded.
        for finder in list(sys.meta_path):
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, name, self)
                return spec
        return None

    def loaded(self, name: str) -> None:
        """Enables a library that the program has just imported, unless that was done."""
        library = self.wanted.pop(name, None)
        if not self.wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
        if library is not None:
            enable(name.partition(".")[0], library, self.account)


class Loader:
    """Another loader, with one step after it. What is asked of the loader itself is that one's to answer."""

    def __init__(self, loader: Any, name: str, imports: MillpondImports) -> None:
        self._loader, self._name, self._imports = loader, name, imports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imports.loaded(self._name)


def enable(name: str, library: str, account: Account) -> None:
    """Puts a library that the program has just imported under the package's pools; says so where that cannot be."""
    import importlib

    without = "is served as any program" if os.environ.get("MILLPOND_RUN") else "keeps its own allocator"
    if name == "torch" and os.environ.get("MILLPOND_OFFLOAD"):
        without += ", and nothing is offloaded"
    try:
        importlib.import_module("millpond")
    except ImportError:
        account.say(f"{library} {without}: for its interface to the pool, install the package millpond for {sys.executable}")
        return
    try:
        if not account.libraries:
            budget()
        importlib.import_module(f"millpond.{name}").enable()
    except Exception as error:
        account.say(f"{library} {without}: {error}")
    else:
        account.enabled(library)


def budget() -> None:
    """The package's pools share a named limit. Under one of the process's own, the preloaded library counts their memory."""
    name, limit = os.environ.get("MILLPOND_RUN_BUDGET"), os.environ.get("MILLPOND_RUN_LIMIT")
    if name and limit:
        import millpond

        millpond.configure(budget=millpond.Budget(int(limit), name=name))


def begin() -> None:
    """Waits for the libraries that the environment asks for, unless it says to leave all as it is."""
    if os.environ.get("MILLPOND_DISABLE") == "1":
        return
    asked = {name: library for name, (variable, library) in LIBRARIES.items() if os.environ.get(variable) == "1"}
    # The package's own start may have been before this one.
    if asked and not any(type(finder).__name__ == MillpondImports.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, MillpondImports(asked))


begin()
