"""``MILLPOND_CUPY=1`` and its like: a library is enabled when the program imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Stands for CuPy, and says whose allocator it is given.
CUPY = """
class cuda:
    @staticmethod
    def set_allocator(allocator):
        print(allocator.__module__)
"""


def run(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "cupy.py").write_text(CUPY)
    variables = {**os.environ, "PYTHONPATH": str(folder), **environment}
    return subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)


def test_a_library_is_enabled_when_it_is_imported(tmp_path: Path) -> None:
    program = "import sys; print('millpond' in sys.modules); import cupy; print(cupy.__loader__.name)"
    assert run(tmp_path, program, MILLPOND_CUPY="1").stdout == "False\nmillpond.cupy\ncupy\n"


def test_without_the_variable_nothing_is_enabled(tmp_path: Path) -> None:
    program = "import sys; import cupy; print('millpond' in sys.modules, len(sys.meta_path))"
    plain = run(tmp_path, program).stdout
    assert plain.startswith("False ")
    assert run(tmp_path, program, MILLPOND_CUPY="0").stdout == plain


def test_what_cannot_be_enabled_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    ran = run(tmp_path, "import torch; print('on')", MILLPOND_TORCH="1")
    assert ran.stdout == "on\n"
    assert ran.stderr.startswith("millpond: PyTorch keeps its own allocator: ")


def test_what_is_not_offloaded_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    said = "millpond: PyTorch keeps its own allocator, and nothing is offloaded: "
    assert run(tmp_path, "import torch", MILLPOND_TORCH="1", MILLPOND_OFFLOAD="optimizer").stderr.startswith(said)
    wrong = run(tmp_path, "import torch", MILLPOND_TORCH="1", MILLPOND_OFFLOAD="model").stderr
    assert wrong == f"{said}MILLPOND_OFFLOAD is 'model': the only value is 'optimizer'\n"


def test_the_kill_switch_wins_over_environment_and_code(tmp_path: Path) -> None:
    program = "import cupy, millpond.cupy; millpond.cupy.enable(); millpond.cupy.enable(); print('on')"
    ran = run(tmp_path, program, MILLPOND_CUPY="1", MILLPOND_DISABLE="1")
    assert ran.stdout == "on\n"
    assert ran.stderr == "millpond: MILLPOND_DISABLE=1: CuPy keeps its own allocator\n"
    assert "millpond.cupy\n" in run(tmp_path, program, MILLPOND_CUPY="1", MILLPOND_DISABLE="0").stdout


@pytest.mark.parametrize("module, library", [("torch", "PyTorch"), ("cupy", "CuPy"), ("numba", "Numba"), ("rmm", "RMM")])
def test_the_kill_switch_wins_over_each_enable_in_the_code(tmp_path: Path, module: str, library: str) -> None:
    program = f"import millpond.{module} as ours; ours.enable(); ours.enable(); print('on')"
    (tmp_path / "torch.py").write_text("")
    ran = run(tmp_path, program, MILLPOND_DISABLE="1")
    assert ran.stdout == "on\n"
    assert ran.stderr == f"millpond: MILLPOND_DISABLE=1: {library} keeps its own allocator\n"


def test_with_the_kill_switch_pytorch_says_that_it_is_not_enabled(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    program = "import millpond; millpond.torch.enable(hard_limit='1GiB', pinned=True); print(millpond.torch.is_enabled())"
    ran = run(tmp_path, program, MILLPOND_TORCH="1", MILLPOND_DISABLE="1")
    assert ran.stdout == "False\n"
    # Without the switch, this module without CUDA is refused.
    with pytest.raises(subprocess.CalledProcessError):
        run(tmp_path, program, MILLPOND_DISABLE="0")
