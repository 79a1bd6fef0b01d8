"""Which library stands between PyTorch and the pools; without PyTorch."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import millpond
import pytest
from millpond import _millpond, _torch_plug_in, _torch_shim

#: Functions that the table has, and what they may be called with where there is no pool.
FUNCTIONS = 36


@pytest.fixture
def include(tmp_path: Path) -> Path:
    for name in _torch_shim.HEADERS:
        path = tmp_path / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"// {name}\n")
    return tmp_path / "include"


@pytest.fixture
def shims(tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shims"
    folder.mkdir()
    (folder / "shims.json").write_text(json.dumps({"2.11": [_torch_shim.fingerprint(include)]}))
    monkeypatch.setattr(_torch_shim, "FOLDER", folder)
    return folder


def test_a_library_is_chosen_by_version_and_headers(shims: Path, include: Path) -> None:
    assert _torch_shim.shim_for("2.11.0+cu130", include) == (shims / "2.11.so", "")
    assert _torch_shim.shim_for("2.11.7", include) == (shims / "2.11.so", "")


def test_a_version_without_a_library_is_named(shims: Path, include: Path) -> None:
    path, why = _torch_shim.shim_for("2.8.0", include)
    assert path is None and why == "this millpond was built for PyTorch 2.11, and this is PyTorch 2.8.0"


def test_other_headers_than_those_of_the_library_are_refused(shims: Path, include: Path) -> None:
    header = include / _torch_shim.HEADERS[0]
    header.write_text(header.read_text() + "// changed\n")
    path, why = _torch_shim.shim_for("2.11.0", include)
    assert path is None and "are not those that the library was built from" in why


def test_headers_that_are_not_there_are_said(shims: Path, include: Path) -> None:
    (include / _torch_shim.HEADERS[-1]).unlink()
    path, why = _torch_shim.shim_for("2.11.0", include)
    assert path is None and _torch_shim.HEADERS[-1] in why


def test_a_package_without_libraries_says_so(
    tmp_path: Path, include: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_torch_shim, "FOLDER", tmp_path / "none")
    path, why = _torch_shim.shim_for("2.11.0", include)
    assert path is None and why == "this millpond was built without any, and this is PyTorch 2.11.0"


def test_hooks_are_given_only_to_headers_that_were_looked_at(tmp_path: Path) -> None:
    header = tmp_path / _torch_plug_in.HEADER
    assert _torch_plug_in.HEADER in str(_torch_plug_in.why_not(tmp_path))
    header.parent.mkdir(parents=True)
    begin = "std::function<void(int, c10::cuda::MempoolId_t, std::function<bool(cudaStream_t)>)> capture_begin_fn"
    end = "std::function<void(int, c10::cuda::MempoolId_t)>"
    lines = [
        "void set_init_fn(std::function<void(int)> init_fn);",
        "void set_reset_fn(std::function<void()> reset_fn);",
        "void set_memory_fraction_fn(std::function<void(double, int)> memory_fraction_fn);",
        "void set_base_alloc_fn(std::function<void*(void*, size_t*)> base_alloc_fn);",
        "void set_record_stream_fn(std::function<void(void* ptr, cudaStream_t stream)> record_stream_fn);",
        f"void set_begin_allocate_to_pool({begin});",
        f"void set_end_allocate_to_pool_fn({end} capture_about_to_end_fn);",
        f"void set_release_pool({end} capture_destroy_fn);",
        "  std::function<void*(size_t, int, cudaStream_t)> alloc_fn_;",
        "  std::function<void(void*, size_t, int, cudaStream_t)> free_fn_;",
        "  std::function<void*(void*, size_t*)> base_alloc_fn_;",
    ]
    header.write_text("\n".join(lines))
    assert _torch_plug_in.why_not(tmp_path) is None
    header.write_text("\n".join(lines).replace("double, int", "double, c10::DeviceIndex"))
    assert "declares them otherwise" in str(_torch_plug_in.why_not(tmp_path))


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no backend 'cuda'"):
        millpond.torch.enable(backend="cuda")  # type: ignore[arg-type]
    assert millpond.torch.backend() is None and not millpond.torch.is_enabled()


def test_pinned_memory_needs_the_native_interface() -> None:
    with pytest.raises(ValueError, match="pinned=True needs PyTorch's native interface"):
        millpond.torch.enable(backend="plug-in", pinned=True)
    assert not millpond.torch.is_enabled()


def test_pytorch_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, millpond.torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_table_says_how_long_it_is() -> None:
    words = (ctypes.c_size_t * (1 + FUNCTIONS)).from_address(_millpond.torch_shim_table())
    assert words[0] == ctypes.sizeof(words)
    assert all(words[1:])


def test_built_libraries_are_for_the_versions_that_are_listed() -> None:
    folder = Path(_torch_shim.__file__).parent / "_torch_shims"
    if not folder.is_dir():
        pytest.skip("scripts/torch-shims was not run before the package was built")
    listed = json.loads((folder / "shims.json").read_text())
    assert {path.stem for path in folder.glob("*.so")} == set(listed)
    assert all(len(prints) >= 1 for prints in listed.values())
