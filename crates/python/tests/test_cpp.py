"""The hooks called from C++, as PyTorch does: what they throw, and what they do with a `std::function`.

Libraries of a few lines stand for PyTorch's; they have its names. Each test runs in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "cpp"

SET_UP = """
import ctypes, sys
folder = sys.argv[1]
import millpond
from millpond import _millpond
MIB = 1 << 20
pool = millpond.Pool("host", name="stand-in", hard_limit=64 * MIB)
_millpond.stand_in(0, pool)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        if os.environ.get("MILLPOND_REQUIRE_TOOLS"):
            raise AssertionError("no g++ here, and MILLPOND_REQUIRE_TOOLS is set")
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("cpp")

    def build(name: str, source: str, *libraries: str) -> None:
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
        paths = [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-Wl,-soname,{name}"]
        command = [compiler, *flags, str(SOURCES / source), "-o", str(folder / name), *paths, *libraries]
        subprocess.run(command, check=True)

    build("libc10.so", "c10.cpp")
    build("libc10_cuda.so", "c10_cuda.cpp", "-lc10")
    build("libprobe.so", "probe.cpp", "-lc10")
    return folder


def run(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SET_UP + body, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


THROWS = """
probe = ctypes.CDLL(f"{folder}/libprobe.so")
throws, hooks = _millpond.torch_hooks()
at = ctypes.c_void_p(dict(hooks)["alloc"])
message = ctypes.create_string_buffer(4096)

def alloc(bytes, device=0):
    message.value = b""
    return probe.call_alloc(at, ctypes.c_size_t(bytes), device, message, ctypes.c_size_t(4096)), message.value.decode()
"""


def test_out_of_memory_is_thrown_as_pytorchs_error(built: Path) -> None:
    body = 'ctypes.CDLL(f"{folder}/libc10_cuda.so")\n' + THROWS
    body += """
assert throws
assert alloc(MIB) == (0, "")
for _ in range(1000):
    kind, text = alloc(512 * MIB)
    assert kind == 1, (kind, text)
assert text.startswith("CUDA out of memory. out of memory in pool 'stand-in': 512.00 MiB requested"), text
assert text.endswith(millpond.last_error())
kind, text = alloc(MIB, 64)
assert (kind, text) == (2, "there is no GPU 64: GPUs are numbered from 0 to 63"), (kind, text)
pool.check()
"""
    run(built, body)


def test_without_pytorchs_type_a_plain_error_is_thrown(built: Path) -> None:
    body = THROWS + """
assert not throws
kind, text = alloc(512 * MIB)
assert kind == 2 and text.startswith("CUDA out of memory. "), (kind, text)
"""
    run(built, body)


def test_captures_allocate_from_memory_of_their_own(built: Path) -> None:
    body = """
ctypes.CDLL("libstdc++.so.6")
ctypes.CDLL(f"{folder}/libc10_cuda.so")
probe = ctypes.CDLL(f"{folder}/libprobe.so")
hooks = dict(_millpond.torch_hooks()[1])
names = ["set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool", "alloc", "free"]
addresses = (ctypes.c_void_p * 5)(*(hooks[name] for name in names))
stream = pool.create_stream()
for _ in range(10):
    inside, outside = ctypes.c_void_p(), ctypes.c_void_p()
    alive = probe.call_capture(addresses, 0, ctypes.c_void_p(stream.handle), ctypes.byref(inside), ctypes.byref(outside))
    assert alive == 0, alive
    assert inside.value and outside.value and abs(inside.value - outside.value) >= 2 * MIB
    pool.check()
assert pool.stats().blocks.current == 0
"""
    run(built, body)
