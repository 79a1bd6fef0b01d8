"""Builds the C++ libraries between others and the pools (`_sources`), where the package brings none that fits.

A library is built once for all that it depends on: its sources, the headers that it includes, the compiler. It lies in a folder
of the user's. Processes that start together build it once: the others wait for a lock. `scripts/torch-shims` and
`scripts/rmm-resources` build the libraries that the package brings in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Union

SOURCES = Path(__file__).parent / "_sources"

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s")

Command = list[Union[str, Path]]


class CannotBuild(Exception):
    """Why a library cannot be built, and what to do, as the end of a sentence."""


class _Refused(CannotBuild):
    """What a program printed that failed by its own decision."""


class Library(NamedTuple):
    """A library that can be built."""

    #: What it is, for people: ``"the allocator for PyTorch 2.16"``.
    what: str
    #: What its file's name begins with.
    name: str
    #: The folder with its sources.
    sources: Path
    #: The file to compile: one of these, or one that is made of them in a folder.
    main: Callable[[Path], Path]
    flags: list[str]
    #: Folders with headers.
    includes: list[Path]
    #: Libraries that are in the process before it. To link, ones without anything in them do.
    links: list[str]
    #: What tells these headers from others.
    headers: str


def digest(folder: Path, *names: str) -> str:
    """What tells files from others: those of these names in a folder, and all below folders of these names."""
    found = hashlib.sha256()
    for name in names:
        at = folder / name
        for path in sorted(at.rglob("*")) if at.is_dir() else [at]:
            if path.is_file():
                found.update(str(path.relative_to(folder)).encode() + b"\0")
                found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def package_folders(name: str, within: str) -> list[Path]:
    """Folders in an installed package, which is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that a program made itself
        return []
    places = (spec.submodule_search_locations if spec else None) or []
    return [path for place in places for path in sorted(Path(place).glob(within)) if path.is_dir()]


def cuda_includes() -> list[Path]:
    """The folders with the CUDA runtime's headers: of NVIDIA's packages, Triton's, the environment's, the toolkit's.

    Several, in this order: those of NVIDIA's packages for CUDA 13 lack ``crt``, which Triton's have.

    Raises:
        CannotBuild: where there are none.
    """
    found = package_folders("nvidia", "cu*/include") + package_folders("triton", "backends/nvidia/include")
    found += [Path(sys.prefix) / "include", *Path(sys.prefix).glob("targets/*/include")]
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    found += [Path(home) / "include" for home in (*homes, "/usr/local/cuda") if home]
    # The compiler looks there anyway, at the end; and must not before.
    system = Path("/usr/include")
    folders = [folder for folder in found if folder != system and (folder / "cuda_runtime_api.h").is_file()]
    for header in ("cuda_runtime_api.h", "crt/host_defines.h"):
        if not any((folder / header).is_file() for folder in (*folders, system)):
            raise CannotBuild(
                f"the CUDA runtime's header {header} is not here. Install it (pip install nvidia-cuda-runtime nvidia-cuda-crt), "
                "or name the CUDA toolkit by the environment variable CUDA_HOME"
            )
    return folders


def compiler() -> list[str]:
    """The C++ compiler: what the environment variable ``CXX`` says, else one that is found.

    Raises:
        CannotBuild: where there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    missing = f"the compiler that CXX names ({shlex.join(named)}) is not here" if named else "no C++ compiler is here"
    raise CannotBuild(f"{missing}. Install g++ (Debian and Ubuntu: apt install g++), or name another by CXX")


def user_folder() -> Path:
    """The folder with what was built for this user: only the user can write there.

    Raises:
        CannotBuild: where it cannot be made, or others can write there.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "millpond"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError) as error:
        raise CannotBuild(f"no folder can be made for it ({error}). Name one by XDG_CACHE_HOME") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise CannotBuild(
            f"{folder} is not a folder that only this user can use. Remove it, or name another place by XDG_CACHE_HOME"
        )
    return folder


def built(library: Library, folder: Path, *flags: str) -> Path:
    """The library, built into a folder unless it is there.

    Raises:
        CannotBuild: where that fails. The compiler's output stays there, and is the answer until it is removed.
    """
    command = compiler()
    key = hashlib.sha256(repr((library.name, FLAGS, library.flags, flags, library.links, library.headers)).encode())
    key.update(run([*command, "--version"], "the compiler does not run").encode())
    key.update(f"{command} {platform.machine()} {digest(library.sources, '.')}".encode())
    out = folder / f"{library.name}-{key.hexdigest()[:16]}.so"
    try:
        if not out.exists():
            with _locked(out.with_suffix(".lock")):
                if not out.exists():
                    _build(library, [*command, *FLAGS, *library.flags, *flags], out)
    except OSError as error:
        raise CannotBuild(f"{folder} cannot be written ({error})") from error
    return out


def _build(library: Library, command: Command, out: Path) -> None:
    log = out.with_suffix(".log")
    if log.exists():
        raise _failed(log)
    print(f"millpond: building {library.what} with {command[0]}, once, into {out.parent}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="building-") as temporary:
        work = Path(temporary)
        steps: list[Command] = []
        for name in library.links:
            stub = f"lib{name}.so"
            steps.append([*command, "-x", "c++", "/dev/null", "-o", work / stub, f"-Wl,-soname,{stub}"])
        folders = [library.sources, *library.includes]
        includes: Command = ["-I", library.sources]
        for folder in library.includes:
            includes += ["-isystem", folder]
        try:
            main = library.main(work)
            maps = [f"-ffile-prefix-map={folder}=." for folder in (work, *folders)]
            links = [f"-L{work}", "-Wl,--no-as-needed", *(f"-l{name}" for name in library.links)]
            steps.append([*command, *maps, *includes, main, "-o", work / "library", *links])
            for step in steps:
                run(step, f"{library.what} does not compile")
        except _Refused as refused:
            log.write_text(str(refused))
            raise _failed(log) from None
        (work / "library").rename(out)


def _failed(log: Path) -> CannotBuild:
    lines = log.read_text().splitlines()
    errors = [line for line in lines[1:] if "error:" in line] or lines[-1:]
    return CannotBuild(
        f"{lines[0]} ({errors[0].strip()}). All of the output is in {log}: remove that to try again, with g++ 11 or later"
    )


def run(command: Command, failure: str) -> str:
    """Runs a program; what it prints.

    Raises:
        CannotBuild: where it fails. The message begins with ``failure``.
    """
    # Errors are looked for by their English name.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise CannotBuild(f"{failure} ({error})") from error
    if done.returncode < 0:
        raise CannotBuild(f"{failure}: signal {-done.returncode} ended {command[0]}")
    if done.returncode > 0:
        raise _Refused(f"{failure}\n{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout



@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        # Some network folders have no locks. Then each process builds, and the last one's library stays.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
