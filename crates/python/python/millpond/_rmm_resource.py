"""RMM's resource in C++: a library for each version of RMM.

`scripts/rmm-resources` builds these libraries from the headers of RMM's wheels. A library is used only with an RMM whose own
headers are, byte for byte, those that it was built from. For any other RMM, one is built here from its headers.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

from . import _compile
from ._compile import CannotBuild, Library

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

#: The last version in which a resource derives from a class of RMM's.
LAST_WITH_CLASS = "26.04"

#: Until that version. RMM's own build has the second, too, and its first release here does not compile without.
FLAGS_WITH_CLASS = ["-DMILLPOND_RMM_DERIVES", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"]


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


def version_of(rmm: Any) -> str:
    """``26.10`` of ``26.10.00``."""
    return ".".join(rmm.__version__.split(".")[:2])


def library_for(rmm: Any) -> tuple[Path | None, str]:
    """The library for an RMM that the package has; else why there is none, as the end of a sentence."""
    version, listed = version_of(rmm), FOLDER / "resources.json"
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


def library(version: str, package: Path, include: Path, others: list[Path]) -> Library:
    """What a library for an RMM and this Python is built of.

    Args:
        package: the folder of the Python package ``rmm``.
        include: the folder of the C++ headers.
        others: folders with the headers of RAPIDS' logger and of the CUDA runtime.

    Raises:
        CannotBuild: where what is needed for that is not here.
    """
    sources, with_class = _compile.SOURCES / "rmm", version <= LAST_WITH_CLASS
    kind = "device_memory_resource" if with_class else "any_resource"
    cython: _compile.Command = [sys.executable, "-m", "cython"]
    try:
        found = _compile.run([*cython, "--version"], "Cython does not run")
    except CannotBuild as error:
        raise CannotBuild("Cython is not here. Install it (pip install cython)") from error
    own = Path(sysconfig.get_paths()["include"])
    if not (own / "Python.h").is_file():
        raise CannotBuild(f"Python's headers are not in {own}. Install them (Debian and Ubuntu: apt install python3-dev)")

    def generate(folder: Path) -> Path:
        out = folder / f"{kind}.cpp"
        options: _compile.Command = ["-3", "--cplus", "--module-name", MODULE, "-I", sources, "-I", package.parent]
        _compile.run([*cython, *options, sources / f"{kind}.pyx", "-o", out], "Cython refuses the resource for this RMM")
        return out

    return Library(
        what=f"the resource for RMM {version}",
        name=f"rmm-{version}",
        sources=sources,
        main=generate,
        flags=FLAGS_WITH_CLASS if with_class else [],
        includes=[include, include / "rapids", *others, own],
        links=["rmm"],
        headers=f"{fingerprint(package, include)} {_compile.digest(include, 'rmm')} {found} {sys.hexversion}",
    )


def build(rmm: Any) -> Path:
    """The library for an RMM and this Python, built for this user unless it was before.

    Raises:
        CannotBuild: where that fails.
        OSError: where a file cannot be read.
    """
    package = Path(rmm.__file__).parent
    include = include_of(package)
    others = _compile.package_folders("rapids_logger", "include") + _compile.cuda_includes()
    return _compile.built(library(version_of(rmm), package, include, others), _compile.user_folder())


def load(rmm: Any) -> tuple[type[Any] | None, str]:
    """The class of resources in C++; else why there is none, as the end of a sentence."""
    path, missing = library_for(rmm)
    if path is None:
        try:
            path = build(rmm)
        except (CannotBuild, OSError) as error:
            return None, f"{missing}, and a library for it cannot be built: {error}"
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
