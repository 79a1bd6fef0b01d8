"""PyTorch's allocator as a class of its own interface: a C++ library for each layout of that interface.

`scripts/torch-shims` builds these libraries from the headers of PyTorch's wheels. A library is used only with a PyTorch whose
own headers are, byte for byte, those that it was built from.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "_torch_shims"

#: The headers that say how what passes between PyTorch and a shim lies in memory.
HEADERS = (
    "ATen/core/CachingHostAllocator.h",
    "c10/core/Allocator.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/core/Device.h",
    "c10/core/Stream.h",
    "c10/cuda/CUDACachingAllocator.h",
    "c10/cuda/CUDAStream.h",
    "c10/util/ApproximateClock.h",
    "c10/util/Exception.h",
    "c10/util/UniqueVoidPtr.h",
    "torch/csrc/cuda/CUDAPluggableAllocator.h",
)


def fingerprint(include: Path) -> str:
    """What tells the headers in a folder from others.

    Raises:
        OSError: where one of them is not there.
    """
    headers = hashlib.sha256()
    for name in HEADERS:
        headers.update(hashlib.sha256((include / name).read_bytes()).digest())
    return headers.hexdigest()


def minor_of(version: str) -> str:
    """``2.11`` of ``2.11.0+cu130``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def shim_for(version: str, include: Path) -> tuple[Path | None, str]:
    """The library for a PyTorch; else why there is none, as the end of a sentence."""
    minor, listed = minor_of(version), FOLDER / "shims.json"
    shims: dict[str, list[str]] = json.loads(listed.read_text()) if listed.is_file() else {}
    if minor not in shims:
        has = f"for PyTorch {', '.join(shims)}" if shims else "without any"
        return None, f"this millpond was built {has}, and this is PyTorch {version}"
    try:
        found = fingerprint(include)
    except OSError as error:
        return None, f"the headers of this PyTorch, which tell its layout, cannot be read ({error})"
    if found not in shims[minor]:
        return None, f"the headers of this PyTorch {version} are not those that the library was built from"
    return FOLDER / f"{minor}.so", ""


def install(torch: Any, table: int, *, pinned: bool) -> str | None:
    """Makes the pools PyTorch's allocator; or says why the library for that cannot be used.

    Args:
        table: the address of the functions that it stands on.
        pinned: whether PyTorch's pinned memory comes from the pools, too.

    Raises:
        RuntimeError: where PyTorch refuses another allocator.
    """
    path, missing = shim_for(torch.__version__, Path(torch.__file__).parent / "include")
    if path is None:
        return missing
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"its library cannot be loaded ({error})"
    library.millpond_torch_install.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    library.millpond_torch_install.restype = ctypes.c_char_p
    refused = library.millpond_torch_install(table, pinned)
    if refused is not None:
        raise RuntimeError(refused.decode(errors="replace"))
    return None
