"""PyTorch's settings of its allocator; without PyTorch."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from millpond import _millpond, _torch_settings


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    told: list[Any] = []
    stand_in = SimpleNamespace(
        torch_set_fraction=lambda fraction: told.append(("fraction", fraction)),
        torch_set_kept=lambda part: told.append(("kept", part)),
        torch_synchronized=lambda gpu: told.append(("synchronized", gpu)),
    )
    monkeypatch.setattr(_torch_settings, "_millpond", stand_in)
    monkeypatch.setattr(_torch_settings, "_said", set())
    for variable in _torch_settings.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return told


def a_torch(told: list[Any]) -> Any:
    def set_settings(settings: str) -> None:
        if "unheard_of" in settings:
            raise ValueError("Unrecognized key 'unheard_of' in Accelerator allocator config.")
        told.append(("pytorch", settings))

    functions = SimpleNamespace(
        _accelerator_setAllocatorSettings=set_settings,
        _cuda_synchronize=lambda: told.append("waited"),
        _accelerator_synchronizeDevice=lambda index: told.append(("waited", index)),
    )
    return SimpleNamespace(_C=functions, cuda=SimpleNamespace(current_device=lambda: 3))


def test_lists_are_one_value() -> None:
    settings = "a:1, roundup_power2_divisions:[256:1,512:2,>:8],b:True"
    assert _torch_settings.parsed(settings) == {
        "a": "1",
        "roundup_power2_divisions": "[256:1,512:2,>:8]",
        "b": "True",
    }
    with pytest.raises(ValueError, match="write name:value"):
        _torch_settings.parsed("a:1,b")


def test_what_has_a_meaning_is_obeyed(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _torch_settings.from_environment(a_torch([]), pinned=False)
    assert sorted(told) == [("fraction", 0.5), ("kept", 0.8)]


def test_what_has_none_is_said_once(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = "max_split_size_mb:64,expandable_segments:True,pinned_use_background_threads:True,backend:native"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    with pytest.warns(UserWarning, match="max_split_size_mb, expandable_segments have no effect") as said:
        _torch_settings.from_environment(a_torch(told), pinned=False)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _torch_settings.from_environment(a_torch(told), pinned=False)
    with pytest.warns(UserWarning, match=": pinned_use_background_threads has no effect"):
        _torch_settings.from_environment(a_torch(told), pinned=True)


def test_a_name_that_pytorch_does_not_know_is_an_error(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "unheard_of:1")
    with warnings.catch_warnings(), pytest.raises(ValueError, match="PYTORCH_CUDA_ALLOC_CONF: Unrecognized key"):
        warnings.simplefilter("error")
        _torch_settings.from_environment(a_torch(told), pinned=False)


def test_another_backend_is_an_error(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    with pytest.raises(ValueError, match="leave out 'backend:cudaMallocAsync'"):
        _torch_settings.from_environment(a_torch(told), pinned=False)
    assert told == []


@pytest.mark.parametrize("value", ["2", "-1", "much"])
def test_a_wrong_value_is_an_error(told: list[Any], value: str) -> None:
    with pytest.raises(ValueError, match=f"garbage_collection_threshold:{value}: a number from 0 to 1"):
        _torch_settings.apply({"garbage_collection_threshold": value}, "here", pinned=False)


def test_settings_of_the_program_come_here_as_well(told: list[Any]) -> None:
    torch = a_torch(told)
    _torch_settings.replace_settings(torch, pinned=False, has_threshold=False)
    torch._C._cuda_synchronize()
    assert told == ["waited"]
    told.clear()
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.5,backend:native")
    assert told == [("pytorch", "garbage_collection_threshold:0.5"), ("kept", 0.5)]
    told.clear()
    torch._C._cuda_synchronize()
    torch._C._accelerator_synchronizeDevice(1)
    assert told == ["waited", ("synchronized", 3), ("waited", 1), ("synchronized", 1)]
    with pytest.raises(ValueError, match="what is set here asks for the allocator"):
        torch._C._accelerator_setAllocatorSettings("backend:cudaMallocAsync")


def test_the_extension_has_what_is_told() -> None:
    _millpond.torch_set_kept(0.0)
    _millpond.torch_synchronized(0)
