"""What `millpond predict` answers where a program asks for whole numbers of the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_predict import PYTHON, of, predict, pytestmark, rank_of_program

__all__ = ["pytestmark"]


def test_a_library_divides_by_a_count() -> None:
    # A batch norm without a momentum averages: it divides by how many batches it has seen, as SWA's update_bn() has it.
    done = of("import torch\ntorch.nn.BatchNorm1d(4, momentum=None).cuda()(torch.ones(8, 4).cuda())\n")
    assert done.returncode == 0, done.stderr


COUNTS = """
import torch
x = torch.ones(8).cuda()
total = 0
total += int((x > 0).sum())
shares = [int((x > 0).sum()) / 8, int((x > 0).sum()) / int((x > 1).sum())]
assert total == 1 and shares == [0.125, 1.0]
print("sum", sum(map(int, x > 0)), f"{sum(map(int, x > 0)) / 4}")
print("count", int((x > 0).sum()), f"{int((x > 0).sum())} {int((x > 0).sum()):3d}")
print("list", x.topk(3).indices.tolist(), x.long().view(4, 2).tolist()[0], 2 * x.long()[0].tolist())
"""


def test_counts_and_lists_are_printed_added_and_divided(tmp_path: Path) -> None:
    program = tmp_path / "counts.py"
    program.write_text(COUNTS)
    done = predict("--", PYTHON, str(program))
    assert done.returncode == 0, done.stderr
    assert "sum 8 2.0\ncount 1 1   1\nlist [0, 0, 0] [0, 0] 0\n" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "torch.zeros(int((x > 0).sum()))",
        "n = int((x > 0).sum())",
        "x[int((x > 0).sum()) - 1]",
        "print(1 + int((x > 0).sum()))",
        "x.split(x.long().tolist())",
        "torch.tensor(x.long().tolist())",
        "torch.tensor([x.long().tolist()])",
        "sorted(x.long().tolist())",
        "x[: x.long().tolist()[0]]",
    ],
)
def test_counts_and_lists_are_refused_where_they_may_be_sizes(line: str, tmp_path: Path) -> None:
    program = tmp_path / "counts.py"
    program.write_text(COUNTS + line)
    done = predict("--", PYTHON, str(program))
    assert done.returncode != 0 and "say --item VALUE" in done.stderr.splitlines()[-1], done.stderr


LBFGS = """
import torch
weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
optimizer = torch.optim.LBFGS([weight], max_iter=5, history_size=3, line_search_fn={search})
def closure():
    optimizer.zero_grad()
    loss = weight.square().sum()
    loss.backward()
    return loss
for _ in range(2):
    optimizer.step(closure)
state = optimizer.state[weight]
assert state["n_iter"] == 10 and len(state["old_dirs"]) == len(state["old_stps"]) == 3, state["n_iter"]
"""


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_keeps_its_history_and_goes_on(search: str | None) -> None:
    done = of(LBFGS.format(search=repr(search)))
    assert done.returncode == 0, done.stderr
    assert "LBFGS is taken to go on until max_iter" in " ".join(done.stdout.split())


UNIQUE = """
import torch
x = torch.zeros(1 << 20, device="cuda")
x.{call}
print("held", torch.cuda.max_memory_allocated() >> 20, "MiB")
kept = x.{call}
print("kept", torch.cuda.memory_allocated() >> 20, "MiB")
"""


@pytest.mark.parametrize(
    ("call", "held", "kept"),
    # PyTorch sorts a copy in another one, with the places of 8 bytes, and cuts what it returns without giving memory back.
    [
        ("unique()", 4 + 8, 4 + 4),
        ("unique(return_inverse=True, return_counts=True)", 4 + 32, 4 + 20),
        ("unique_consecutive(return_counts=True)", 4 + 12, 4 + 12),
    ],
)
def test_what_unique_returns_keeps_the_memory_of_all(call: str, held: int, kept: int) -> None:
    done = of(UNIQUE.format(call=call), "--selected", "0.25")
    assert done.returncode == 0, done.stderr
    assert f"held {held} MiB\nkept {kept} MiB\n" in done.stderr, done.stderr


def test_cudnn_that_tries_kernels_is_told_first(tmp_path: Path) -> None:
    program = """
import torch
torch.backends.cudnn.benchmark = {on}
torch.nn.Conv2d(3, 8, 3).cuda()(torch.zeros(2, 3, 8, 8).cuda())
"""
    told = [rank_of_program(tmp_path, program.format(on=on))["first"] for on in (True, False)]
    assert any("cudnn.benchmark is on" in text for text in told[0]) and not told[1], told


#: What PyTorch checks by values of the card, and a program relies on.
CHECKED = [
    "torch.distributions.Categorical(logits=x).log_prob(torch.zeros(8, device='cuda'))",
    "torch.distributions.Normal(x, x.exp()).rsample()",
    "torch.testing.assert_close(x, x.clone())",
    "torch.istft(torch.stft(x, 8, 2, return_complex=True), 8, 2)",
    "torch.corrcoef(x)",
]


def test_what_pytorch_checks_is_right(tmp_path: Path) -> None:
    program = tmp_path / "checked.py"
    program.write_text("import torch\nx = torch.zeros(8, 64, device='cuda')\n" + "\n".join(CHECKED))
    done = predict("--", PYTHON, str(program))
    assert done.returncode == 0, done.stderr


def test_the_loss_of_texts_beside_sounds_takes_two_tables(tmp_path: Path) -> None:
    program = """
import torch
times, texts, longest = 500, 16, 100
sounds = torch.randn(times, texts, 32, device="cuda").log_softmax(2).requires_grad_()
words = torch.randint(1, 32, (texts * longest,), dtype=torch.int32)
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
torch.nn.functional.ctc_loss(sounds, words, (times,) * texts, (longest,) * texts, reduction="sum").backward()
taken = torch.cuda.max_memory_allocated() - before
assert 2 * 4 * times * texts * (2 * longest + 1) < taken < 20 << 20, taken
"""
    remarks = rank_of_program(tmp_path, program)["remarks"]
    assert any("ctc_loss() was not measured" in remark for remark in remarks), remarks


RECURRENT = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence
batch, times, inside, hidden, layers, both, packed = {sizes}
layer = torch.nn.{kind}(inside, hidden, layers, bidirectional=both, batch_first=True).cuda()
x = torch.randn(batch, times, inside, device="cuda", requires_grad=True)
given = pack_padded_sequence(x, [times] * batch, batch_first=True) if packed else x
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
result = layer(given)
print("taken", torch.cuda.max_memory_allocated() - before)
"""


@pytest.mark.parametrize(
    ("kind", "sizes", "measured"),
    # On an H200: outputs, what is kept, and the workspace, over the gates.
    [
        ("LSTM", (128, 200, 304, 256, 2, True, True), (0.25 + 1.732 + 2.75) * 209_715_200),
        ("LSTM", (64, 100, 256, 512, 2, False, False), (0.125 + 0.25 + 2.025 + 2.75) * 52_428_800),
        ("GRU", (64, 100, 256, 512, 1, False, True), (0.333 + 1.343 + 2.0) * 39_321_600),
    ],
)
def test_recurrent_layers_take_what_was_measured(kind: str, sizes: tuple[Any, ...], measured: float) -> None:
    done = of(RECURRENT.format(kind=kind, sizes=sizes))
    assert done.returncode == 0, done.stderr
    taken = int(done.stderr.split("taken ")[1].split()[0])
    assert abs(taken / measured - 1) < 0.02, taken / measured
