"""Libraries that are built where the package brings none; with a small one in the place of PyTorch's allocator."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from millpond import _compile, _torch_shim
from millpond._compile import CannotBuild, Library

if shutil.which("g++") is None and not os.environ.get("MILLPOND_REQUIRE_TOOLS"):
    pytest.skip("no g++ here", allow_module_level=True)

#: Notes each time that the library is compiled.
COMPILER = """#!/bin/sh
case "$*" in *main.cpp*) echo compiled >>"$0.log" ;; esac
exec g++ "$@"
"""


class Workshop:
    """A library's source and header, and a compiler that counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sources").mkdir()
        (folder / "include").mkdir()
        (folder / "out").mkdir()
        (folder / "sources/main.cpp").write_text('#include <layout.h>\nextern "C" int answer() { return ANSWER; }\n')
        self.set_header("#define ANSWER 42\n")
        self.compiler = folder / "compiler"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)

    def set_header(self, text: str) -> None:
        (self.folder / "include/layout.h").write_text(text)

    def library(self) -> Library:
        return Library(
            what="a small library",
            name="small",
            sources=self.folder / "sources",
            main=lambda _: self.folder / "sources/main.cpp",
            flags=[],
            includes=[self.folder / "include"],
            links=["loaded_before"],
            headers=_compile.digest(self.folder, "include"),
        )

    def build(self) -> Path:
        return _compile.built(self.library(), self.folder / "out")

    def compiled(self) -> int:
        """How often."""
        log = self.folder / "compiler.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def left(self) -> list[str]:
        """The kinds of files in the folder with what was built."""
        return sorted(path.suffix for path in (self.folder / "out").iterdir())


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    monkeypatch.setenv("CXX", str(made.compiler))
    return made


def test_a_library_is_built_once_and_one_line_says_so(
    workshop: Workshop, capfd: pytest.CaptureFixture[str]
) -> None:
    path = workshop.build()
    said = capfd.readouterr()
    assert said.err == f"millpond: building a small library with {workshop.compiler}, once, into {path.parent}\n"
    assert workshop.build() == path and workshop.compiled() == 1
    assert capfd.readouterr() == ("", "") and said.out == ""
    assert workshop.left() == [".lock", ".so"]
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True).stdout
    assert "libloaded_before.so" in needed


def test_what_it_is_built_of_makes_another_library(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {workshop.build()}
    workshop.set_header("#define ANSWER 43\n")
    found.add(workshop.build())
    source = workshop.folder / "sources/main.cpp"
    source.write_text(source.read_text() + "// changed\n")
    found.add(workshop.build())
    monkeypatch.setenv("CXX", f"{workshop.compiler} -O1")
    found.add(workshop.build())
    assert len(found) == workshop.compiled() == 4


def start(workshop: Workshop) -> subprocess.Popen[str]:
    """A process that builds the library, and prints where it is."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_compile import Workshop
workshop = Workshop.__new__(Workshop)
workshop.folder = Path({str(workshop.folder)!r})
print(workshop.build())
"""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_processes_that_start_together_build_once(workshop: Workshop) -> None:
    processes = [start(workshop) for _ in range(4)]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert len({out for out, _ in said}) == 1 and workshop.compiled() == 1
    assert sorted(err.count("building a small library") for _, err in said) == [0, 0, 0, 1]


def test_a_process_that_is_killed_while_it_builds_leaves_that_to_the_next(workshop: Workshop) -> None:
    # The first time, the compiler never ends.
    hangs = '[ -e "$0.log" ] || { case "$*" in *main.cpp*) echo compiled >>"$0.log"; sleep 600 ;; esac; }\n'
    workshop.compiler.write_text(COMPILER.replace("case", hangs + "case", 1))
    killed = start(workshop)
    while not workshop.compiled():
        time.sleep(0.01)
    waiting = start(workshop)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    out, said = waiting.communicate()
    assert waiting.returncode == 0 and Path(out.strip()).is_file(), said


def test_what_does_not_compile_is_said_and_not_tried_again(workshop: Workshop) -> None:
    workshop.set_header("#error not for you\n")
    for _ in range(2):
        with pytest.raises(CannotBuild, match=r"a small library does not compile \(.*#error not for you\).*remove") as why:
            workshop.build()
    assert workshop.compiled() == 1 and workshop.left() == [".lock", ".log"]
    log = next((workshop.folder / "out").glob("*.log"))
    assert str(log) in str(why.value) and "main.cpp" in log.read_text()
    log.unlink()
    with pytest.raises(CannotBuild):
        workshop.build()
    assert workshop.compiled() == 2
    # Another header is another library.
    workshop.set_header("#define ANSWER 42\n")
    workshop.build()


def test_a_compiler_that_is_killed_is_tried_again(workshop: Workshop) -> None:
    workshop.compiler.write_text(COMPILER.replace("exec g++", '[ "$1" = --version ] || kill -9 $$\nexec g++'))
    for _ in range(2):
        with pytest.raises(CannotBuild, match="signal 9 ended"):
            workshop.build()
    assert workshop.left() == [".lock"]


def test_without_a_compiler_the_message_names_one_to_install(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(CannotBuild, match=r"CXX names \(/nowhere/g\+\+ -m64\) is not here. Install g\+\+"):
        workshop.build()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotBuild, match=r"no C\+\+ compiler is here. Install g\+\+"):
        workshop.build()


def test_a_folder_that_cannot_be_written_is_named(workshop: Workshop) -> None:
    shutil.rmtree(workshop.folder / "out")
    with pytest.raises(CannotBuild, match="/out cannot be written"):
        workshop.build()


def test_the_users_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = _compile.user_folder()
    assert folder == tmp_path / "cache/millpond" and folder.stat().st_mode & 0o777 == 0o700
    assert _compile.user_folder() == folder
    folder.chmod(0o755)
    with pytest.raises(CannotBuild, match="not a folder that only this user can use"):
        _compile.user_folder()
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        with pytest.raises(CannotBuild, match="not a folder that only this user can use"):
            _compile.user_folder()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotBuild, match="not a folder that only this user can use"):
        _compile.user_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _compile.user_folder() == tmp_path / "home/.cache/millpond"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CannotBuild, match="Name one by XDG_CACHE_HOME"):
        _compile.user_folder()


def test_headers_of_the_cuda_runtime_are_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compile, "package_folders", lambda *_: [])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    folder = tmp_path / "cuda/include"
    (folder / "crt").mkdir(parents=True)
    (folder / "cuda_runtime_api.h").touch()
    (folder / "crt/host_defines.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert folder in _compile.cuda_includes()
    for header in ("crt/host_defines.h", "cuda_runtime_api.h"):
        (folder / header).unlink()
        if not any(Path(place, "include", header).exists() for place in ("/usr", "/usr/local/cuda")):
            with pytest.raises(CannotBuild, match=f"{header} is not here. Install it .pip install nvidia-cuda-runtime"):
                _compile.cuda_includes()


def test_the_package_has_the_sources() -> None:
    for name, files in (("torch", ["allocator.cpp", "pool.h"]), ("rmm", ["any_resource.pyx", "resource.hpp"])):
        assert all((_compile.SOURCES / name / file).is_file() for file in files)


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A PyTorch of which no library is there, and whose headers declare nothing."""
    for name in _torch_shim.HEADERS:
        path = tmp_path / "torch/include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(_torch_shim, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(_compile, "cuda_includes", lambda: [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return SimpleNamespace(__version__="9.1.0", __file__=str(tmp_path / "torch/__init__.py"))


def test_a_pytorch_that_it_does_not_compile_for_is_told(torch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    why = _torch_shim.install(torch, 0, pinned=False)
    assert why is not None
    begin = "this millpond was built without any, and this is PyTorch 9.1.0, and a library for it cannot be built: "
    assert why.startswith(begin + "the allocator for PyTorch 9.1 does not compile (")
    assert "fatal error" in why or "error:" in why
    assert capfd.readouterr().err.count("building the allocator for PyTorch 9.1") == 1


def test_without_a_compiler_the_reason_is_the_warnings(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere")
    why = _torch_shim.install(torch, 0, pinned=False)
    assert why is not None and why.endswith("Install g++ (Debian and Ubuntu: apt install g++), or name another by CXX")


def test_without_headers_of_pytorch_nothing_is_compiled(torch: Any) -> None:
    shutil.rmtree(Path(torch.__file__).parent / "include")
    why = _torch_shim.install(torch, 0, pinned=False)
    assert why is not None and "does not have PyTorch's headers" in why
