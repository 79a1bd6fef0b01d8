"""RMM's resource in C++: a library for each version of RMM.

`scripts/rmm-resources` builds these libraries from the headers of RMM's wheels. A library is used only with an RMM whose own
headers are, byte for byte, those that it was built from.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "_rmm_resources"

#: The name by which Python finds a library's first function.
MODULE = "_millpond_rmm_resource"

#: What says how that which passes between RMM and a resource lies in memory: declarations of RMM's Python package, and
#: headers of RMM and of CCCL, whose release is in `version.h`.
DECLARATIONS = ("librmm/memory_resource.pxd", "pylibrmm/memory_resource*/_memory_resource.pxd", "pylibrmm/*resource.pxd")
HEADERS = (
    "rapids/cuda/__memory_resource/*.h",
    "rapids/cuda/__utility/__basic_any/*.h",
    "rapids/cuda/__stream/stream_ref.h",
    "rapids/cuda/std/__cccl/version.h",
    "rmm/error.hpp",
    "rmm/cuda_stream_view.hpp",
    "rmm/resource_ref.hpp",
    "rmm/**/device_memory_resource.hpp",
)


def fingerprint(package: Path, include: Path) -> str:
    """What tells the headers of an RMM from others.

    Args:
        package: the folder of the Python package ``rmm``.
        include: the folder of the C++ headers.

    Raises:
        OSError: where they are not there.
    """
    found = [path for names in DECLARATIONS for path in sorted(package.glob(names))]
    found += [path for names in HEADERS for path in sorted(include.glob(names))]
    if not (package / DECLARATIONS[0]).exists() or not (include / "rmm/error.hpp").exists():
        raise FileNotFoundError(f"no headers in {package} and {include}")
    headers = hashlib.sha256()
    for path in found:
        headers.update(hashlib.sha256(path.read_bytes()).digest())
    return headers.hexdigest()


def include_of(package: Path) -> Path:
    """The folder of the C++ headers: the package librmm has them, else the environment."""
    librmm = importlib.util.find_spec("librmm")
    if librmm is not None and librmm.submodule_search_locations:
        return Path(librmm.submodule_search_locations[0]) / "include"
    return Path(sys.prefix) / "include"


def library_for(rmm: Any) -> tuple[Path | None, str]:
    """The library for an RMM; else why there is none, as the end of a sentence."""
    version, listed = ".".join(rmm.__version__.split(".")[:2]), FOLDER / "resources.json"
    resources: dict[str, str] = json.loads(listed.read_text()) if listed.is_file() else {}
    if version not in resources:
        has = f"for RMM {', '.join(resources)}" if resources else "without any"
        return None, f"this millpond was built {has}, and this is RMM {rmm.__version__}"
    package = Path(rmm.__file__).parent
    try:
        found = fingerprint(package, include_of(package))
    except OSError as error:
        return None, f"the headers of this RMM, which tell its layout, cannot be read ({error})"
    if found != resources[version]:
        return None, f"the headers of this RMM {rmm.__version__} are not those that the library was built from"
    return FOLDER / f"{version}.so", ""


def load(rmm: Any) -> tuple[type[Any] | None, str]:
    """The class of resources in C++; else why there is none, as the end of a sentence."""
    path, missing = library_for(rmm)
    if path is None:
        return None, missing
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        return None, f"its library cannot be loaded ({error})"
    found: type[Any] = module.Resource
    return found, ""
