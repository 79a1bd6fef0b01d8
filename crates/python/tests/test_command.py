"""The `millpond` command of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import millpond
import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millpond", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_says_its_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"millpond {millpond.__version__}\n", "")


@pytest.mark.parametrize("arguments", [(), ("frobnicate",), ("replay",)])
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    # Without a command the whole help is printed; else the error says where it is.
    assert "Usage:" in done.stderr or "--help` " in done.stderr


def test_an_error_is_a_line_and_status_1() -> None:
    done = run("replay", "missing.pickle")
    assert done.returncode == 1
    assert done.stderr.startswith("millpond: missing.pickle: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["run", "card"])
def test_what_is_preloaded_lies_in_the_package_or_that_is_said(name: str) -> None:
    library = Path(millpond.__file__).parent / "_run" / f"libmillpond_{name}.so"
    done = run(*(["run", "true"] if name == "run" else ["predict", "--", "true"]))
    if library.exists():
        assert "is not in this Python package" not in done.stderr
    else:
        assert done.stderr.startswith(f"millpond: libmillpond_{name}.so is not in this Python package: `pip install")


def test_the_help_has_every_subcommand() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in ("train", "replay", "bench", "info", "fetch"):
        assert f"  {name} " in done.stdout


def test_the_example_says_why_it_failed(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples/python/fits.py"
    done = subprocess.run([sys.executable, str(example), "much"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "fits.py: much is no number: pass the limit in GiB, such as 17.5\n")
    (tmp_path / "torch.py").write_text("raise ImportError('not for this test')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "PyTorch cannot be imported (not for this test): install it with pip install torch" in done.stderr
    assert "the run with native failed; why is said above" in done.stderr
