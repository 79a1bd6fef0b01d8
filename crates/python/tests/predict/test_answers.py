"""What `millpond predict` answers where a program asks for whole numbers of the card."""

from __future__ import annotations

from test_predict import of, pytestmark

__all__ = ["pytestmark"]


def test_a_library_divides_by_a_count() -> None:
    # A batch norm without a momentum averages: it divides by how many batches it has seen, as SWA's update_bn() has it.
    done = of("import torch\ntorch.nn.BatchNorm1d(4, momentum=None).cuda()(torch.ones(8, 4).cuda())\n")
    assert done.returncode == 0, done.stderr
