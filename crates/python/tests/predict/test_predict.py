"""`millpond predict` with PyTorch, against what the same jobs did on a GPU.

Needs a CUDA build of PyTorch, and no GPU. Where it is missing, these tests are skipped. `MILLPOND_PREDICT_PYTHON` names a Python that
has it, if the tests' own has not; `MILLPOND_PREDICT_COMMAND` names a command, if it is not that of the package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "jobs"

#: Bytes that each job requested at most on an H100, with PyTorch 2.11: docs/lab/predict.md.
TRUTHS = {
    "mlp": 797_918_920,
    "lora": 6_902_542_536,
    "unet": 2_063_119_055,
    "vgg": 2_970_760_151,
    "rnn": 1_360_110_920,
    "gru": 1_686_508_036,
}

#: SGD without momentum has no state.
STATELESS = {"rnn"}

PYTHON = os.environ.get("MILLPOND_PREDICT_PYTHON", sys.executable)


def runs(asked: str) -> bool:
    return subprocess.run([PYTHON, "-c", asked], capture_output=True, check=False).returncode == 0


def has_torch() -> bool:
    return runs("import torch, sys; sys.exit(not torch.backends.cuda.is_built())")


def has(module: str) -> bool:
    return runs(f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)")


COMMAND = [os.environ["MILLPOND_PREDICT_COMMAND"]] if "MILLPOND_PREDICT_COMMAND" in os.environ else [sys.executable, "-m", "millpond"]


def has_card() -> bool:
    if "MILLPOND_CARD_LIBRARY" in os.environ or "MILLPOND_PREDICT_COMMAND" in os.environ:
        return True
    package = importlib.util.find_spec("millpond")
    return package is not None and (Path(str(package.origin)).parent / "_run" / "libmillpond_card.so").exists()


pytestmark = [
    pytest.mark.skipif(not has_torch(), reason="no PyTorch with CUDA: name a Python that has it in MILLPOND_PREDICT_PYTHON"),
    pytest.mark.skipif(not has_card(), reason="the package has no libmillpond_card.so: scripts/run-library builds it"),
]


def predict(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "predict", *arguments], capture_output=True, text=True, check=False)


def of(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return predict(*arguments, "--", PYTHON, "-c", program)


def rank_of(folder: Path, *arguments: str) -> dict[str, Any]:
    """What is told of the one process of a program that is predicted."""
    file = folder / "p.json"
    done = predict("--json", str(file), *arguments)
    assert done.returncode == 0, done.stderr
    rank: dict[str, Any] = json.loads(file.read_text())["ranks"][0]
    return rank


def rank_of_program(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    return rank_of(folder, *arguments, "--", PYTHON, "-c", program)


@pytest.mark.parametrize("job", TRUTHS)
def test_a_job_requests_what_it_did_on_a_gpu(job: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    done = predict("--json", str(file), "--", PYTHON, str(JOBS / f"{job}.py"))
    assert done.returncode == 0, done.stderr
    rank = json.loads(file.read_text())["ranks"][0]
    assert 0.98 <= rank["peak_requested"] / TRUTHS[job] <= 1.03
    kinds = {row["name"]: row["bytes"] for row in rank["kinds"]}
    assert {"activation", "parameter", "workspace"} <= kinds.keys()
    assert ("optimizer state" in kinds) == (job not in STATELESS)
    assert sum(kinds.values()) == rank["peak_requested"]


TRAINS = """
import torch
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    loss = model(torch.randn(8, 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {line}
raise SystemExit("not reached")
"""


def test_a_loss_and_a_count_can_be_printed() -> None:
    done = of(TRAINS.format(line="print(f'{loss.item():.2f}', f'{(loss > 0).sum().item() / 8:.3f}')"))
    assert done.returncode == 0, done.stderr
    assert "1.00 0.000" in done.stderr and "a value of the card is answered by 1" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("if loss > 3: break", "<string>:10: a branch on a tensor"),
        ("if (loss > 0).sum().item() > 3: break", "<string>:10: a branch on item()"),
        ("model.weight[model.weight > 0]", "<string>:10: a mask or nonzero()"),
        ("if 3 in torch.arange(3, device='cuda').tolist(): break", "<string>:10: a branch on tolist()"),
    ],
)
def test_what_needs_a_value_is_refused_with_its_line(line: str, said: str) -> None:
    done = of(TRAINS.format(line=line))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"millpond: {said}"), done.stderr


COUNTS = """
import json, math, statistics
import torch
loss = torch.ones(64, device="cuda", requires_grad=True).sum()
count = (loss > 0).sum().item()
(loss / count + count).backward()
whole = torch.arange(4, device="cuda") * count
assert whole.dtype == torch.int64 and torch.tensor(count).dtype == torch.int64
assert torch.full((2,), count).shape == torch.tensor([count, 1], device="cuda").shape == (2,)
assert json.dumps({"count": count}) == '{"count": 0}'
assert "%d of %d, %.1f" % (count, 64, count) == "0 of 64, 0.0" and "%d" % (loss > 0).sum() == "0"
assert [str(value) for value in (round(count), count**2, 64 // count, *divmod(count, 2))] == ["0"] * 5
assert math.log(1 + count) == 0 and float(count) / float(count) == 1 and str(statistics.mean([count, count])) == "0"
assert [statistics.mean(of) for of in ([count, 0.5], [0.5, count, 1], [count, 2])] == [0.25, 0.5, 1] and statistics.stdev([count, 0.5])
assert float((loss > 0).sum()) == 1.0
"""


def test_a_count_is_a_number_where_it_is_no_size() -> None:
    done = of(COUNTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    ["torch.zeros(n)", "torch.arange(n)", "torch.full((n, 2), 1)", "loss[:n]", "loss[n]", "loss.repeat_interleave(n)", "[0] * n", "int(n)"],
)
def test_a_count_is_refused_where_it_is_a_size(line: str) -> None:
    done = of(f"import torch\nloss = torch.ones(8).cuda()\nn = (loss > 0).sum().item()\n{line}\n")
    assert done.returncode == 2 and "needs a value that only a GPU would compute" in done.stderr, done.stderr


def test_what_does_not_know_a_count_is_told_with_the_option() -> None:
    done = of("import decimal, torch\nn = (torch.ones(8).cuda() > 0).sum().item()\ndecimal.Decimal(n)\n")
    assert done.returncode == 1 and "say --item VALUE" in done.stderr, done.stderr


@pytest.mark.parametrize("line", ["torch.compile(model)", "model.compile()", "model.forward = torch.compile()(model.forward)"])
def test_compiled_code_is_told_before_the_figures(line: str) -> None:
    done = of(f"import torch\nmodel = torch.nn.Linear(8, 8).cuda()\n{line}\nmodel(torch.ones(8, 8).cuda())\n")
    assert done.returncode == 0, done.stderr
    assert 0 < done.stdout.find("But: torch.compile is used, and the code is predicted as it is written") < done.stdout.find("requests"), done.stdout


def test_a_loss_scaler_has_its_first_scale() -> None:
    program = """
import torch
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
scaler.scale(torch.ones(8, device="cuda"))
assert scaler.get_scale() == scaler.state_dict()["scale"] == 1024.0
"""
    done = of(program)
    assert done.returncode == 0, done.stderr


def test_large_data_of_the_program_keeps_its_values() -> None:
    program = """
import torch
data = torch.arange(1 << 20, dtype=torch.float64)
assert data.float().max() == data.to(torch.float32).max() == (1 << 20) - 1
assert 0.4 < torch.empty(1 << 20).uniform_().mean() < 0.6 and torch.empty(1 << 20).normal_().std() > 0.9
torch.zeros(8).cuda()
"""
    done = of(program)
    assert done.returncode == 0, done.stderr


def test_large_weights_get_no_values() -> None:
    program = """
import torch
model = torch.nn.Linear(8192, 8192, bias=False)
model.weight.data.normal_()
own = torch.nn.Parameter(torch.zeros(8192, 8192)).requires_grad_(False).uniform_()
assert not own.any()
# The pages of weights that nobody fills are not there: 64 models would need 24 GiB.
models = [torch.nn.Linear(8192, 8192, bias=False).half() for _ in range(64)]
held = [int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmRSS")]
assert held[0] < 4096, held
models[0].cuda()
"""
    done = of(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not has("safetensors"), reason="needs safetensors beside PyTorch")
def test_safetensors_are_written_and_read(tmp_path: Path) -> None:
    program = """
import os, pathlib, torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
tensors = {"b": torch.arange(3, dtype=torch.uint8), "a": torch.arange(6.0).view(2, 3), "card": torch.ones(4, device="cuda")}
for _ in range(2):
    save_file(tensors, pathlib.Path("model.safetensors"), metadata={"format": "pt"})
read = load_file("model.safetensors")
assert all(read[name].equal(tensors[name]) for name in "ab") and read["card"].shape == (4,)
assert safe_open("model.safetensors", "pt").metadata() == {"format": "pt"} and os.listdir() == ["model.safetensors"]
"""
    done = subprocess.run([*COMMAND, "predict", "--", PYTHON, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_a_sparse_tensor_keeps_its_entries_and_says_so(tmp_path: Path) -> None:
    program = """
import torch
made = torch.sparse_coo_tensor(torch.zeros(2, 1000, dtype=torch.int64).cuda(), torch.ones(1000, 3).cuda(), (10, 10, 3)).coalesce()
assert made.is_coalesced() and made.indices().shape == (2, 1000) and made.values().shape == (1000, 3)
"""
    remarks = rank_of_program(tmp_path, program)["remarks"]
    assert any("coalesce() of a sparse tensor is taken to keep all entries" in remark for remark in remarks), remarks


UNIQUE = {
    "x.unique(dim=0, return_inverse=True, return_counts=True)": "[(4, 2), (8,), (4,)]",
    "x.unique(return_inverse=True, return_counts=True)": "[(8,), (8, 2), (8,)]",
    "x.unique_consecutive(return_inverse=True, return_counts=True)": "[(8,), (8, 2), (8,)]",
    "x.unique_consecutive(dim=1, return_inverse=True, return_counts=True)": "[(8, 1), (2,), (1,)]",
}


@pytest.mark.parametrize("line", UNIQUE)
def test_how_many_values_are_unique_is_asked_for(line: str) -> None:
    program = f"import torch\nx = torch.zeros(8, 2).cuda()\nprint([tuple(part.shape) for part in {line}])"
    done = of(program)
    assert done.returncode == 2 and "<string>:3: unique" in done.stderr, done.stderr
    done = of(program, "--selected", "0.5")
    assert done.returncode == 0 and UNIQUE[line] in done.stderr, done.stderr


def test_an_option_answers_what_needs_a_value() -> None:
    line = "print(model.weight[model.weight > 0].shape, 'more' if loss > 3 else 'less')"
    done = of(TRAINS.format(line=line), "--item", "4", "--selected", "0.25")
    assert done.returncode == 0, done.stderr
    assert "torch.Size([262144]) more" in done.stderr


#: Libraries that ask if something holds for all values, and what is requested with the answer that needs more, in MiB.
ASKS = {
    "return torch.empty(8 << 20).cuda() if (values == 0).all() else torch.empty(2 << 20).cuda()": (32, "answered by yes"),
    "return torch.empty(2 << 20).cuda() if (values == 0).all() else torch.empty(8 << 20).cuda()": (32, "answered by no"),
    "return torch.empty(8 << 20).cuda() if (positions == 0).all() else torch.empty(2 << 20).cuda()": (32, None),
    "return torch.empty(2 << 20).cuda() if mask.all() else torch.empty(8 << 20).cuda()": (32, "a mask has no gaps"),
}


@pytest.mark.parametrize("line", ASKS)
def test_what_a_library_asks_of_all_values_is_answered_by_what_needs_more(line: str, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "asks.py").write_text(f"import torch\ndef made(mask):\n    values = positions = mask\n    {line}\n")
    program = f"import sys, torch; sys.path.append({str(library)!r}); import asks; made = asks.made(torch.ones(4).cuda())"
    rank = rank_of_program(tmp_path, program)
    mib, said = ASKS[line]
    assert rank["peak_requested"] >> 20 == mib
    assert said is None or any("asks.py:4 asks if " in remark and said in remark for remark in rank["remarks"]), rank["remarks"]


#: Bytes that a BERT with padded texts of so many words took on an H200, as PyTorch counts them (docs/lab/predict.md).
BERTS = {256: 6_673_280_000, 512: 12_176_393_216}


@pytest.mark.skipif(not has("transformers"), reason="needs Transformers beside PyTorch")
@pytest.mark.parametrize("length", BERTS)
def test_a_mask_with_padding_takes_the_memory_of_a_mask(length: int, tmp_path: Path) -> None:
    rank = rank_of(tmp_path, "--", PYTHON, str(JOBS / "bert.py"), "--length", str(length))
    assert 0.995 <= rank["peak_requested"] / BERTS[length] <= 1.01, rank["peak_requested"]
    assert any("asks if a mask has no gaps" in remark for remark in rank["remarks"]), rank["remarks"]


def test_a_library_is_one_wherever_it_was_installed(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    (libraries / "asks-1.0.dist-info").mkdir(parents=True)
    (libraries / "asks.py").write_text("def has_no_gaps(mask):\n    return bool(mask.all())\n")
    program = f"""
import sys
sys.path.insert(0, {str(libraries)!r})
import asks, torch
mask = torch.ones(8, dtype=torch.bool, device="cuda")
held = torch.empty(1 << 20 if asks.has_no_gaps(mask) else 2 << 20, dtype=torch.uint8, device="cuda")
"""
    rank = rank_of_program(tmp_path, program)
    assert any("asks.py" in remark and "no gaps" in remark for remark in rank["remarks"]), rank["remarks"]
    (libraries / "asks-1.0.dist-info").rmdir()
    file = tmp_path / "own.json"
    done = predict("--json", str(file), "--", PYTHON, "-c", program)
    assert done.returncode != 0 and "asks.py:2: a branch on a tensor" in done.stderr, "a module of the program's is not answered for"


def test_an_error_that_begins_with_an_empty_line_is_told() -> None:
    done = of("import torch\nraise RuntimeError('\\n\\nbelow')\n")
    assert done.stderr.endswith("RuntimeError: below; nothing is predicted\n"), done.stderr


def test_a_program_without_an_optimizer_of_pytorch_ends() -> None:
    program = """
import torch
weight = torch.ones(100, 100, device="cuda", requires_grad=True)
while True:
    (torch.ones(8, 100, device="cuda") @ weight).sum().backward()
    weight.grad = None
"""
    done = of(program, "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert "ended after 32 backwards" in done.stdout


def test_the_program_sees_the_card_that_was_named() -> None:
    program = "import torch; torch.ones(1).cuda(); print(torch.cuda.get_device_properties(0))"
    done = of(program, "--card", "RTX 4090")
    assert "name='RTX 4090', major=8, minor=9, total_memory=24207MB, multi_processor_count=128" in done.stderr


def test_a_program_that_fails_is_no_prediction() -> None:
    done = of("import torch; torch.ones(3, device='cuda') @ torch.ones(4, device='cuda')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("; nothing is predicted")


RECORDS = """
import torch
{begin}
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    {step}
    model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""
BEGIN = "torch.cuda.memory._record_memory_history(max_entries=100)"
DUMP = "torch.cuda.memory._dump_snapshot('own.pickle')"
END = "torch.cuda.memory._record_memory_history(enabled=None)"


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"begin": BEGIN, "end": f"{DUMP}; {END}"},
        {"step": f"{BEGIN}; {DUMP}; {END}"},
        {"begin": "torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10)"},
        {"step": "torch.cuda.reset_peak_memory_stats(); torch.cuda.memory.reset_accumulated_memory_stats()"},
    ],
)
def test_a_program_with_a_history_of_its_own_is_predicted_as_without(words: dict[str, str], tmp_path: Path) -> None:
    program = RECORDS.format(**{"begin": "", "step": "", "end": "", **words})
    for steps in ("3", "9"):
        rank = rank_of_program(tmp_path, program, "--steps", steps)
        assert rank["peak_requested"] == 236_093_440, "225.16 MiB"
        assert rank["recorded_reserved"] == 240 << 20
        assert {row["name"]: row["bytes"] for row in rank["kinds"]}["optimizer state"] == 67_174_400
        records = any("records its own memory history" in remark for remark in rank["remarks"])
        assert records == ("_record_memory_history" in program)


def test_two_predictions_are_equal_however_fast_the_host_is(tmp_path: Path) -> None:
    told = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        wait = f"import random, time; time.sleep(random.random() / {20 + 40 * number})"
        rank = rank_of_program(folder, TRAINS.format(line=wait), "--record", str(folder / "job.pickle"))
        command = [*COMMAND, "replay", "job.pickle", "--json", "replay.json"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        (replayed,) = json.loads((folder / "replay.json").read_text())
        for row in replayed["allocators"]:
            del row["replay_s"]
        told.append((rank, replayed))
    assert told[0] == told[1]
    rank, replayed = told[0]
    needs = {row["allocator"]: row["needs"] for row in rank["allocators"]}
    # A replay promises nothing of the driver's own pool.
    for row in (row for row in replayed["allocators"] if row["needs"] is not None):
        assert needs[row["allocator"]] == max(row["needs"], row["needs_elsewhere"])


def test_a_sparse_gradient_is_predicted(tmp_path: Path) -> None:
    program = """
import torch
bag = torch.nn.EmbeddingBag(4096, 64, sparse=True, device="cuda")
bag(torch.randint(4096, (512, 8), device="cuda")).sum().backward()
torch.optim.SparseAdam(bag.parameters()).step()
"""
    kinds = {row["name"] for row in rank_of_program(tmp_path, program)["kinds"]}
    assert {"parameter", "gradient"} <= kinds


def test_a_program_that_enables_millpond_is_predicted_with_a_remark(tmp_path: Path) -> None:
    # Stands for the package, whose functions would look for a GPU.
    package = tmp_path / "millpond"
    package.mkdir()
    (package / "__init__.py").write_text("from . import torch\n")
    (package / "torch.py").write_text("def enable(**options):\n    raise RuntimeError('no GPU')\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport millpond; millpond.torch.enable(hard_limit=1 << 30)\n"
    rank = rank_of_program(tmp_path, program + TRAINS.format(line=""))
    assert any("the program enables Millpond" in remark for remark in rank["remarks"]), rank["remarks"]


def test_a_check_for_nan_is_answered_before_the_option(tmp_path: Path) -> None:
    asked = "if torch.isnan(loss): break", "if torch.isnan(loss).any().item(): break"
    lines = (*asked, "assert torch.isfinite(loss).all()", "if loss > 3: pass")
    script = tmp_path / "train.py"
    script.write_text(TRAINS.format(line="\n    ".join(lines)))
    for item in ("0", "1"):
        rank = rank_of(tmp_path, "--item", item, "--", PYTHON, str(script))
        assert rank["first"] == [] and "3 steps" in rank["seen"]
    script.write_text(TRAINS.format(line="\n    ".join(lines[:-1])))
    assert "3 steps" in rank_of(tmp_path, "--", PYTHON, str(script))["seen"]


def test_an_optimizer_without_a_step_is_said_first(tmp_path: Path) -> None:
    program = TRAINS.format(line="").replace("    optimizer.step()\n", "    break\n").replace("raise SystemExit", "print")
    rank = rank_of_program(tmp_path, program)
    assert rank["first"][0].startswith("no optimizer took a step"), rank
    assert rank_of_program(tmp_path, program.replace("torch.optim.Adam(model.parameters())", "None"))["first"] == []


def test_parameters_of_lazy_modules_are_counted_once_they_are_there(tmp_path: Path) -> None:
    program = TRAINS.format(line="").replace("torch.nn.Linear(1024, 1024, device=\"cuda\")", "torch.nn.LazyLinear(1024).cuda()")
    program = program.replace("optimizer = ", "model(torch.randn(8, 1024, device='cuda')); optimizer = ")
    kinds = {row["name"]: row["bytes"] for row in rank_of_program(tmp_path, program)["kinds"]}
    assert kinds["parameter"] == 4 * (1024 * 1024 + 1024)


def test_gradients_of_each_sample_are_predicted(tmp_path: Path) -> None:
    program = """
import torch
from torch.func import functional_call, grad, vmap
model = torch.nn.Linear(64, 64).cuda()
weights = {name: weight.detach() for name, weight in model.named_parameters()}
loss = lambda weights, x: functional_call(model, weights, (x,)).square().sum()
gradients = vmap(grad(loss), (None, 0))(weights, torch.randn(32, 64, device="cuda"))
"""
    rank = rank_of_program(tmp_path, program)
    kinds = {row["name"]: row["bytes"] for row in rank["kinds"]}
    assert kinds["parameter"] == 4 * (64 * 64 + 64)
    # One for each of the 32 samples.
    assert rank["peak_requested"] >= kinds["parameter"] * 33


def test_workers_of_a_loader_end_in_silence() -> None:
    program = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.Adam(model.parameters())
for (part,) in DataLoader(TensorDataset(torch.randn(512, 16)), batch_size=8, num_workers=2, pin_memory=True):
    model(part.cuda(non_blocking=True)).sum().backward()
    optimizer.step()
"""
    done = of(program)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "3 steps of the optimizer" in done.stdout


SETS = {
    "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = '{}'; import torch": "PYTORCH_CUDA_ALLOC_CONF={}",
    "import torch; torch._C._accelerator_setAllocatorSettings('{}')": "{}",
}


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize(
    ("settings", "said"),
    [("expandable_segments:True", "the row expandable"), ("max_split_size_mb:64", "--alloc-conf max_split_size_mb:64")],
)
def test_settings_of_the_allocator_are_left_out_and_said(sets: str, settings: str, said: str, tmp_path: Path) -> None:
    rank = rank_of_program(tmp_path, f"import os; {sets.format(settings)}\n" + TRAINS.format(line=""))
    (remark,) = (remark for remark in rank["remarks"] if SETS[sets].format(settings) in remark)
    assert said in remark, remark


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import torch, argparse; argparse.ArgumentParser().parse_args(['--nope'])", 1, "ended with status 2 before it told"),
        ("import torch; print(torch.cuda.is_available())", 2, "it allocated nothing on a card"),
    ],
)
def test_a_program_that_allocates_nothing_is_told_so_in_one_line(program: str, status: int, said: str) -> None:
    done = of(program)
    assert done.returncode == status
    assert said in done.stderr.splitlines()[-1], done.stderr


#: Lines that use a library beside cuBLAS and cuDNN, and which.
LINES = {
    "y = torch.fft.irfft(torch.fft.rfft(y), n=1024)": "cuFFT",
    "y = torch.stft(y.flatten(), 256, 64, window=torch.hann_window(256).cuda(), return_complex=True).abs()": "cuFFT",
    "y = y + torch.linalg.inv(torch.eye(4).cuda().repeat(8, 1, 1)).mean()": "",
    "y = y @ torch.linalg.eigh(model.weight.detach())[1]": "cuSOLVER",
    "y = y + torch.linalg.inv(model.weight)": "cuSOLVER",
    "torch.nn.init.orthogonal_(model.weight)": "cuSOLVER",
    "y = torch.linalg.svd(y)[1]; y = y + torch.linalg.qr(model.weight.repeat(3, 1, 1))[1].mean()": "cuSOLVER",
    "y = (torch.eye(64).cuda().to_sparse() @ y[:64])": "cuSPARSE",
}

USES = """
import torch
model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    y = model(torch.randn(1024, 1024, device="cuda"))
    {line}
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("line", LINES)
def test_a_library_whose_workspaces_were_not_measured_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    library = LINES[line]
    rank = rank_of_program(tmp_path, USES.format(line=line), "--selected", "0.1")
    assert "3 steps" in rank["seen"]
    # The model takes 36 MiB, and nothing here has more than a few times that.
    assert 32 << 20 < rank["peak_requested"] < 256 << 20
    lines = [said for said in rank["first"] if said.startswith("<string>:7: workspaces of ")]
    assert all(f"workspaces of {library} were not measured" in said for said in lines), rank["first"]
    assert bool(lines) == bool(library), rank["first"]


def test_an_offloaded_optimizer_is_told_with_its_copies(tmp_path: Path) -> None:
    job = str(JOBS / "mlp.py")
    plain = rank_of(tmp_path, "--", PYTHON, job)
    rank = rank_of(tmp_path, "--offload", "optimizer", "--bandwidth", "25", "--", PYTHON, job)
    [state] = [kind["bytes"] for kind in plain["kinds"] if kind["name"] == "optimizer state"]
    told = rank["offloaded"]
    assert told["bytes"] == state and told["bytes_a_time"] == 2 * state and told["times"] == 3
    assert told["copies_s"] == pytest.approx(2 * state / 25e9)
    assert told["peak_before"] == plain["peak_requested"] == rank["peak_requested"]
    assert told["peak_requested"] <= told["peak_before"] and told["needs"] >= told["peak_requested"]
    assert told["away_us"] is None, "a prediction has no times"
