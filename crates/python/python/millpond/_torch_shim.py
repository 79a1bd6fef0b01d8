"""PyTorch's allocator as a class of its own interface: a C++ library for each layout of that interface.

`scripts/torch-shims` builds these libraries from the headers of PyTorch's wheels. A library is used only with a PyTorch whose
own headers are, byte for byte, those that it was built from. For any other PyTorch, one is built here from its headers.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from pathlib import Path
from typing import Any

from . import _compile
from ._compile import CannotBuild, Library

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


#: What a library includes of PyTorch.
INCLUDED = ("c10/", "torch/headeronly/", "torch/csrc/cuda/", "ATen/core/CachingHostAllocator.h")

#: PyTorch's libraries that a library needs.
LINKS = ["c10", "c10_cuda", "torch_cpu", "torch_cuda"]


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


def library(version: str, include: Path, cuda: list[Path]) -> Library:
    """What a library for a PyTorch is built of, with the folders of its headers and of the CUDA runtime's."""
    minor = minor_of(version)
    major, number = (int(part) for part in minor.split("."))
    sources = _compile.SOURCES / "torch"
    headers = [_compile.digest(include, *INCLUDED)]
    headers += [_compile.digest(folder, "cuda_runtime_api.h", "crt/host_defines.h") for folder in cuda]
    return Library(
        what=f"the allocator for PyTorch {minor}",
        name=f"torch-{minor}",
        sources=sources,
        main=lambda _: sources / "allocator.cpp",
        flags=[f"-DMILLPOND_TORCH={major}{number:02}"],
        includes=[include, *cuda],
        links=LINKS,
        headers=" ".join(headers),
    )


def build(version: str, include: Path) -> Path:
    """The library for a PyTorch, built for this user unless it was before.

    Raises:
        CannotBuild: where that fails.
        OSError: where a file cannot be read.
    """
    if not (include / HEADERS[-1]).is_file():
        raise CannotBuild(f"{include} does not have PyTorch's headers. Install PyTorch from its wheel")
    return _compile.built(library(version, include, _compile.cuda_includes()), _compile.user_folder())


def install(torch: Any, table: int, *, pinned: bool) -> str | None:
    """Makes the pools PyTorch's allocator; or says why the library for that cannot be used.

    Args:
        table: the address of the functions that it stands on.
        pinned: whether PyTorch's pinned memory comes from the pools, too.

    Raises:
        RuntimeError: where PyTorch refuses another allocator.
    """
    include = Path(torch.__file__).parent / "include"
    path, missing = shim_for(torch.__version__, include)
    if path is None:
        try:
            path = build(torch.__version__, include)
        except (CannotBuild, OSError) as error:
            return f"{missing}, and a library for it cannot be built: {error}"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"its library cannot be loaded ({error})"
    loaded.millpond_torch_install.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    loaded.millpond_torch_install.restype = ctypes.c_char_p
    refused = loaded.millpond_torch_install(table, pinned)
    if refused is not None:
        raise RuntimeError(refused.decode(errors="replace"))
    return None
