"""RMM's resource in C++, with RMM's own package where it is installed, and with a pool of the CPU in a GPU's place."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from millpond import _compile, _millpond, _rmm_resource

FUNCTIONS = 4

needs_rmm = pytest.mark.skipif(importlib.util.find_spec("rmm") is None, reason="RMM is not installed")

#: What each program begins with: GPU 0 is the CPU.
BEGIN = """
import millpond, rmm, warnings
warnings.simplefilter("error")
pool = millpond.Pool("host", hard_limit="64 MiB")
millpond._millpond.stand_in(0, pool)
resource = millpond.rmm.resource(0)
"""


def run(program: str, before: str = "") -> str:
    """Runs a program in a process of its own: a GPU's pool is for the whole process."""
    command = [sys.executable, "-c", before + BEGIN + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_built() -> bool:
    return (_rmm_resource.FOLDER / "resources.json").is_file()


needs_library = pytest.mark.skipif(not is_built(), reason="scripts/rmm-resources was not run before the package was built")


def test_rmm_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, millpond.rmm; sys.exit('rmm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_table_says_how_long_it_is() -> None:
    words = (ctypes.c_size_t * (1 + FUNCTIONS)).from_address(_millpond.rmm_table())
    assert words[0] == ctypes.sizeof(words)
    assert all(words[1:])


@needs_library
def test_built_libraries_are_for_the_versions_that_are_listed() -> None:
    listed = json.loads((_rmm_resource.FOLDER / "resources.json").read_text())
    assert {path.stem for path in _rmm_resource.FOLDER.glob("*.so")} == set(listed)


class FakeRmm:
    """An RMM of another version, or with other headers."""

    def __init__(self, version: str, package: Path) -> None:
        self.__version__ = version
        self.__file__ = str(package / "__init__.py")


def test_another_version_of_rmm_has_no_library_and_the_reason_is_said(tmp_path: Path) -> None:
    library, why = _rmm_resource.library_for(FakeRmm("19.02.00", tmp_path))
    assert library is None
    assert "this millpond was built" in why and "RMM 19.02.00" in why


@needs_library
def test_headers_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    version = next(iter(json.loads((_rmm_resource.FOLDER / "resources.json").read_text())))
    library, why = _rmm_resource.library_for(FakeRmm(version + ".00", tmp_path))
    assert library is None
    assert "cannot be read" in why


@needs_library
@needs_rmm
def test_memory_comes_from_the_pool_without_python_and_goes_back() -> None:
    run("""
assert type(resource).__mro__[1] is rmm.mr.DeviceMemoryResource
address = resource.allocate(1 << 20)
assert address % 256 == 0 and pool.stats().requested.current == 1 << 20
resource.deallocate(address, 1 << 20)
assert pool.stats().requested.current == 0
resource.deallocate(resource.allocate(0), 0)
pool.check()
""")


@needs_library
@needs_rmm
def test_adaptors_of_rmm_stand_on_it_and_outlive_it() -> None:
    run("""
import gc
adaptors = [
    rmm.mr.StatisticsResourceAdaptor(resource),
    rmm.mr.TrackingResourceAdaptor(resource),
    rmm.mr.LimitingResourceAdaptor(resource, 1 << 20),
]
del resource
gc.collect()
for adaptor in adaptors:
    addresses = [(adaptor.allocate(size), size) for size in (1, 1000, 1 << 19)]
    assert all(address for address, _ in addresses) and pool.stats().blocks.current == 3
    for address, size in addresses:
        adaptor.deallocate(address, size)
assert adaptors[0].allocation_counts.total_count == 3 and adaptors[1].get_allocated_bytes() == 0
assert pool.stats().requested.current == 0
pool.check()
""")


@needs_library
@needs_rmm
def test_out_of_memory_is_rmms_own_so_that_its_fallbacks_ask() -> None:
    asked = run("""
def spill(size):
    print(size)
    resource.deallocate(held, 40 << 20)
    return True

held = resource.allocate(40 << 20)
try:
    resource.allocate(40 << 20)
    raise SystemExit("it fits")
except MemoryError as error:
    assert "out_of_memory" in str(error) and "requested, but" in str(error), error
try:
    resource.allocate(1 << 63)
    raise SystemExit("it fits")
except MemoryError as error:
    assert "out_of_memory" in str(error), error
adaptor = rmm.mr.FailureCallbackResourceAdaptor(resource, spill)
address = adaptor.allocate(40 << 20)
adaptor.deallocate(address, 40 << 20)
pool.check()
""")
    assert asked == f"{40 << 20}\n"


@needs_library
@needs_rmm
def test_a_device_has_it_as_its_resource() -> None:
    run("""
millpond.rmm.enable(0)
assert type(rmm.mr.get_per_device_resource(0)) is type(resource)
assert millpond.stats(0).allocations == 0
""")


@needs_rmm
def test_without_a_library_python_is_called_and_a_warning_says_why() -> None:
    run("""
import os
from millpond import _rmm_resource
from pathlib import Path
_rmm_resource.FOLDER = Path("/nowhere")
os.environ["CXX"] = "nowhere"
millpond.rmm._class_of.cache_clear()
if not hasattr(rmm.pylibrmm.stream.Stream, "__cuda_stream__"):
    try:
        millpond.rmm.resource(0)
        raise SystemExit("it has a resource")
    except millpond.Error as error:
        assert "was built without any, and this is RMM" in str(error)
        raise SystemExit(0)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    callback = millpond.rmm.resource(0)
assert isinstance(callback, rmm.mr.CallbackMemoryResource)
for part in ("was built without any, and this is RMM", "cannot be built: ", "Install "):
    assert part in str(said[0].message), said[0].message
address = callback.allocate(1000)
assert pool.stats().requested.current == 1000
callback.deallocate(address, 1000)
assert pool.stats().requested.current == 0
""")


@needs_rmm
def test_for_an_rmm_that_is_not_known_a_resource_is_built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        _compile.compiler(), _compile.cuda_includes()
    except _compile.CannotBuild as error:
        pytest.skip(str(error))
    if importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = run(
        """
assert resource.deallocate(resource.allocate(1 << 20), 1 << 20) is None
assert type(resource).__mro__[1] is rmm.mr.DeviceMemoryResource
print(resource.__class__.__module__)
""",
        before="import millpond._rmm_resource as own, pathlib; own.FOLDER = pathlib.Path('/nowhere')",
    )
    assert said == "_millpond_rmm_resource\n"
    assert len(list(tmp_path.glob("millpond/rmm-*.so"))) == 1


@needs_library
@needs_rmm
def test_streams_lent_and_registered_pair_and_registered_ones_stay() -> None:
    run("""
import gc
from rmm.pylibrmm.stream import Stream
if not hasattr(Stream, "__cuda_stream__"):
    raise SystemExit(0)
lent, kept = pool.create_stream(), pool.create_stream()
handle = kept.handle
millpond.rmm.register([kept], 0)
del kept
gc.collect()

class Raw:
    def __cuda_stream__(self):
        return 0, handle

for stream in (Stream(lent), Stream(Raw())):
    for size in (1, 1000, 1 << 20):
        address = resource.allocate(size, stream)
        resource.deallocate(address, size, stream)
        assert resource.allocate(size, stream) == address
        resource.deallocate(address, size, stream)
assert pool.stats().requested.current == 0
pool.check()
""")


@needs_library
@needs_rmm
def test_threads_share_the_resource() -> None:
    run("""
from concurrent.futures import ThreadPoolExecutor

def work(number):
    for size in range(1 + number, 300_000, 7001):
        address = resource.allocate(size)
        resource.deallocate(address, size)

with ThreadPoolExecutor(4) as threads:
    list(threads.map(work, range(4)))
assert pool.stats().requested.current == 0
pool.check()
""")
