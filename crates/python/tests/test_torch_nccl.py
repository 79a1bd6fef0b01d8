"""What NCCL may register; without NCCL."""

from __future__ import annotations

import os
import warnings

import pytest
from millpond import _torch_nccl
from millpond._torch_nccl import GRAPHS, HOOK


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (GRAPHS, HOOK):
        # Set first, so that what the function sets is taken back.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def test_graphs_register_nothing_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _torch_nccl.keep_from_registering()
        assert os.environ[GRAPHS] == "0"
        assert HOOK not in os.environ
        monkeypatch.setenv(GRAPHS, "1")
        monkeypatch.setenv(HOOK, "0")
        _torch_nccl.keep_from_registering()
    assert os.environ[GRAPHS] == "1"


@pytest.mark.parametrize("value", ["1", "True"])
def test_the_hook_is_switched_off_with_a_warning(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOOK, value)
    with pytest.warns(UserWarning, match="is switched off"):
        _torch_nccl.keep_from_registering()
    assert os.environ[HOOK] == "0"
