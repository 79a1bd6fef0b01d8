"""Tensors of millpond's are rebuilt where millpond is PyTorch's allocator, and refused elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from millpond import Error, _torch_sharing


def of_handle(handle: bytes) -> list[Any]:
    """The arguments of ``rebuild_cuda_tensor`` up to the handle."""
    return [*[None] * 7, handle]


@pytest.fixture
def reductions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for ``torch.multiprocessing.reductions``."""
    modules = [ModuleType(name) for name in ("torch", "torch.multiprocessing", "torch.multiprocessing.reductions")]
    torch, multiprocessing, reductions = modules
    torch.multiprocessing, multiprocessing.reductions = multiprocessing, reductions  # type: ignore[attr-defined]
    reductions.rebuild_cuda_tensor = lambda *_: "rebuilt"  # type: ignore[attr-defined]
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(_torch_sharing, "_rebuild", None)
    return reductions


def test_a_process_that_allocates_otherwise_refuses_tensors_of_millpond(reductions: ModuleType) -> None:
    with pytest.raises(Error, match="this process allocates otherwise"):
        _torch_sharing.rebuild_cuda_tensor(*of_handle(b"millpond/2/name"))
    assert _torch_sharing.rebuild_cuda_tensor(*of_handle(b"\x01PyTorch's own")) == "rebuilt"


def test_a_process_with_the_native_interface_rebuilds_both(reductions: ModuleType) -> None:
    _torch_sharing.replace_rebuild()
    assert reductions.rebuild_cuda_tensor is _torch_sharing.rebuild_cuda_tensor
    for handle in (b"millpond/2/name", b"\x01PyTorch's own"):
        assert _torch_sharing.rebuild_cuda_tensor(*of_handle(handle)) == "rebuilt"
