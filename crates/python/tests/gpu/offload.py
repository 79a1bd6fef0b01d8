"""Jobs that are bigger than the card, measured on a GPU: an optimizer, and three models in turn.

    python3 offload.py [--out FILE]

Prints Markdown tables, a row as soon as it is measured. It takes about five minutes and less than 80 GB. Each part is a process of its own:
`offload.py gpt`, and so on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30

#: 1.5 G parameters.
WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH = 2048, 28, 16, 32768, 1024

#: Steps of each turn. The first ones are not timed.
STEPS, NOT_TIMED, TURNS = 9, 3, 2

#: So many texts of a batch at most: 70 GB.
MOST_TEXTS = 40

#: Of each of the three models that take turns.
MODEL_BYTES = 4 * GIB


# ---- a plain GPT -------------------------------------------------------------------------------------


def model_and_optimizer(torch: Any) -> tuple[Any, Any]:
    from torch import nn
    from torch.nn import functional as F

    be_deterministic(torch)
    from torch.utils.checkpoint import checkpoint

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            texts, length, _ = x.shape
            parts = self.qkv(self.norms[0](x)).view(texts, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(texts, length, WIDTH))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, words: Any) -> Any:
            x = self.words(words) + self.places.weight
            for number, layer in enumerate(self.layers):
                # Every second layer is computed anew in the backward.
                x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.flatten(0, 1), words.roll(-1, 1).flatten())

    with torch.device("cuda"):
        model = Gpt()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def be_deterministic(torch: Any) -> None:
    torch.use_deterministic_algorithms(True)
    # Its attention is not.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.utils.deterministic.fill_uninitialized_memory = False


def begin_anew(torch: Any, model: Any, optimizer: Any) -> None:
    """The weights of the first step, and no state."""
    torch.manual_seed(0)
    optimizer.zero_grad()
    optimizer.state.clear()
    with torch.no_grad():
        for one in model.parameters():
            one.normal_(0, 0.02) if one.dim() > 1 else one.zero_()
        for one in model.modules():
            if isinstance(one, torch.nn.LayerNorm):
                one.weight.fill_(1)


def step(torch: Any, model: Any, optimizer: Any, texts: int) -> Any:
    words = torch.randint(VOCABULARY, (texts, LENGTH), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def phases(torch: Any, job: tuple[Any, ...]) -> list[float]:
    """Seconds that the GPU takes for the forward, the backward and the step."""
    model, optimizer, texts = job
    took = []
    for _ in range(4):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randint(VOCABULARY, (texts, LENGTH), device="cuda"))
        marks[1].record()
        loss.backward()
        marks[2].record()
        optimizer.step()
        optimizer.zero_grad()
        marks[3].record()
        torch.cuda.synchronize()
        took.append([one.elapsed_time(other) / 1000 for one, other in zip(marks, marks[1:])])
    return [min(of_phase) for of_phase in zip(*took[1:])]


def steps(torch: Any, job: tuple[Any, ...], count: int, not_timed: int) -> tuple[float, list[float]]:
    """Seconds of a step, and the losses. From the end of one step to the end of a later one, on the GPU: what leaves behind a step is
    copied beside the next one, and the last copies out are no step's."""
    losses, ends = [], []
    for _ in range(count):
        losses.append(step(torch, *job))
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
    torch.cuda.synchronize()
    taken = ends[not_timed - 1].elapsed_time(ends[-1]) / 1000
    return taken / (count - not_timed), [float(loss) for loss in losses]


def copy_seconds(torch: Any, size: int) -> tuple[float, float]:
    """What plain pinned copies take for so many bytes: to the host, and back."""
    there, here = torch.empty(GIB, dtype=torch.uint8, device="cuda"), torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    took = []
    for to, of in ((here, there), (there, here)):
        to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(4):
            to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()
        took.append((time.monotonic() - began) / 4 * size / GIB)
    return took[0], took[1]


class Peak:
    """The most that the pool and its tags hold, and that is requested of what is there, looked at each two milliseconds."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.held, self.requested, self.is_over = pool, 0, 0, False
        self.thread = threading.Thread(target=self.look)

    def look(self) -> None:
        while not self.is_over:
            stats = [self.pool.stats(), *(self.pool.tagged(tag).stats() for tag in self.pool.tags)]
            self.held = max(self.held, sum(one.reserved.current for one in stats))
            there = [one for one in stats if one.reserved.current > 0]
            self.requested = max(self.requested, sum(one.requested.current for one in there))
            time.sleep(0.002)

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.thread.join()


def gpt() -> None:
    """Chooses the batches, and compares the two kinds of processes by turns."""
    import torch

    model, optimizer = model_and_optimizer(torch)
    parameters = sum(one.numel() for one in model.parameters())
    state = 8 * parameters
    out, back = copy_seconds(torch, state)
    say(f"{torch.cuda.get_device_name()}; {parameters / 1e9:.2f} G parameters, {state / 1e9:.1f} GB of state; plain pinned copies take "
        f"{1000 * out:.0f} ms out ({state / out / 1e9:.1f} GB/s) and {1000 * back:.0f} ms back ({state / back / 1e9:.1f} GB/s)")
    begin_anew(torch, model, optimizer)
    few, more = (sum(phases(torch, (model, optimizer, texts))[:2]) for texts in (4, 12))
    a_text = (more - few) / 8
    fixed = few - 4 * a_text
    # Texts for which the arithmetic takes half as long as both copies, as long, and as long as half of it can hide one of them.
    shares = {2.0: (out + back) / 2, 1.0: out + back, 0.6: (out + back) / 0.6}
    texts = {share: min(max(round((wanted - fixed) / a_text), 1), MOST_TEXTS) for share, wanted in shares.items()}
    say(f"a text takes {1000 * a_text:.1f} ms, and what does not depend on texts {1000 * fixed:.0f} ms")
    del model, optimizer
    torch.cuda.empty_cache()
    ran: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(TURNS):
        for is_offloaded, said in ran.items():
            offloads = {"MILLPOND_OFFLOAD": "optimizer"} if is_offloaded else {}
            done = part(["batches", *map(str, texts.values())], offloads)
            if done.returncode:
                raise SystemExit(f"batches failed: {done.stderr[-900:]}")
            said.append(json.loads(done.stdout.splitlines()[-1]))
    say("")
    say("| texts | forward, backward, step | copies, of forward and backward | requested, held at most | with offload | a step | with offload "
        "| times | possible | of that | losses |")
    say("| " + " | ".join(["---"] * 11) + " |")
    for batch in map(str, texts.values()):
        plain, ours = ([one[batch] for one in ran[which]] for which in (False, True))
        forward, backward, rest = plain[0]["phases"]
        # What the forward keeps lies where the state was. So it ends no sooner than the copies out, nor the backward than those back.
        possible = max(forward, out) + max(backward, back) + rest
        without, with_it = (min(one["step"] for one in kind) for kind in (plain, ours))
        equal = all(one["losses"] == plain[0]["losses"] for one in plain + ours)
        cells = [batch, ", ".join(f"{1000 * one:.0f}" for one in (forward, backward, rest)) + " ms"]
        cells.append(f"{(out + back) / (forward + backward):.2f}")
        cells += [f"{kind[0]['requested'] / GIB:.2f}, {kind[0]['held'] / GIB:.2f} GiB" for kind in (plain, ours)]
        cells += [times([one["step"] for one in kind]) for kind in (plain, ours)]
        cells += [f"{with_it / without:.3f}", f"{possible / without:.3f}", f"{with_it / possible:.3f}"]
        say("| " + " | ".join([*cells, "equal" if equal else f"NOT EQUAL: {plain} {ours}"]) + " |")
    middle = str(texts[1.0])
    kept = {"plain": ran[False][0][middle]["requested"], "offloaded": ran[True][0][middle]["requested"], "texts": texts[1.0]}
    Path(os.environ["OFFLOAD_LIMIT"]).write_text(json.dumps(kept))


def batches(all_texts: list[str]) -> None:
    """Batches of one kind, the small ones first. `MILLPOND_OFFLOAD` says which."""
    import millpond
    import millpond.torch

    millpond.torch.enable()
    import torch

    model, optimizer = model_and_optimizer(torch)
    pool, said = millpond.pool(0), {}
    for texts in all_texts:
        job = model, optimizer, int(texts)
        begin_anew(torch, model, optimizer)
        pool.trim()
        seconds, losses = steps(torch, job, STEPS, NOT_TIMED)
        with Peak(pool) as peak:
            step(torch, *job)
            step(torch, *job)
            torch.cuda.synchronize()
        said[texts] = {"step": seconds, "losses": losses, "requested": peak.requested, "held": peak.held}
        if not os.environ.get("MILLPOND_OFFLOAD"):
            said[texts]["phases"] = phases(torch, job)
    print(json.dumps(said))


def times(took: list[float]) -> str:
    return " and ".join(f"{1000 * one:.0f}" for one in took) + " ms"


# ---- under a limit -----------------------------------------------------------------------------------


def train() -> None:
    """A script that nobody changes."""
    import torch

    limit, texts = int(os.environ["OFFLOAD_BYTES"]), int(os.environ["OFFLOAD_TEXTS"])
    if not os.environ.get("MILLPOND_LIMIT"):
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        model, optimizer = model_and_optimizer(torch)
        begin_anew(torch, model, optimizer)
        seconds, losses = steps(torch, (model, optimizer, texts), STEPS, NOT_TIMED)
        said = f"runs: {1000 * seconds:.0f} ms a step | {losses[-1]!r}"
    except torch.OutOfMemoryError as error:
        said = f"out of memory: {str(error)[:60]}… | "
    print(json.dumps(said))


def under_a_limit() -> None:
    kept = json.loads(Path(os.environ["OFFLOAD_LIMIT"]).read_text())
    limit = (kept["plain"] + kept["offloaded"]) // 2
    say("")
    say(f"| under {limit / GIB:.2f} GiB, with {kept['texts']} texts | | last loss |")
    say("| --- | --- | --- |")
    python = [sys.executable, __file__, "train"]
    run = [sys.executable, "-m", "millpond", "run", "--quiet", "--offload", "optimizer", "--", *python]
    rows: list[tuple[str, list[str], dict[str, str]]] = [
        ("PyTorch's allocator", python, {}),
        ("… with expandable segments", python, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ("`millpond run --offload optimizer`", run, {"MILLPOND_LIMIT": f"{limit >> 20}MiB"}),
        ("`millpond run`", [word for word in run if word not in ("--offload", "optimizer")], {"MILLPOND_LIMIT": f"{limit >> 20}MiB"}),
    ]
    for name, command, more in rows:
        environment = {**os.environ, "OFFLOAD_BYTES": str(limit), "OFFLOAD_TEXTS": str(kept["texts"]), **more}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=90)
        lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
        say(f"| {name} | {json.loads(lines[-1]) if lines else f'failed with {done.returncode}: ' + done.stderr[-600:] + ' | '} |")


# ---- three models in turn ----------------------------------------------------------------------------


def models(torch: Any) -> list[Any]:
    """On the CPU. Each is of linear layers in bfloat16."""
    width = 8192
    made = []
    for number in range(3):
        with torch.device("meta"):
            layers = [torch.nn.Linear(width, width, bias=False, dtype=torch.bfloat16) for _ in range(MODEL_BYTES // (2 * width * width))]
        model = torch.nn.Sequential(*layers).to_empty(device="cpu").requires_grad_(False)
        torch.manual_seed(number)
        for layer in layers:
            layer.weight.copy_(torch.randn(width, width, device="cuda", dtype=torch.bfloat16) / 64)
        made.append(model)
    torch.cuda.empty_cache()
    return made


def turns(how: str) -> None:
    # What is left beside the two others is three quarters of a model.
    limit = MODEL_BYTES * 11 // 4 + GIB // 4
    if how == "millpond":
        import millpond.torch

        millpond.torch.enable(hard_limit=limit)
    import torch

    if how != "millpond":
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    made = models(torch)
    began = time.monotonic()
    if how == "millpond":
        millpond.torch.offload(made, device="cuda")
    elif how == "accelerate":
        from accelerate import cpu_offload_with_hook

        hook: Any = None
        for at, model in enumerate(made):
            made[at], hook = cpu_offload_with_hook(model, execution_device="cuda", prev_module_hook=hook)
        last = hook
    prepared = time.monotonic() - began
    x = torch.ones(4096, 8192, device="cuda", dtype=torch.bfloat16) / 64
    took, sums = [], []
    # The first two rounds make pinned memory, and learn who comes next.
    for number in range(5 if how == "millpond" else 3):
        torch.cuda.synchronize()
        began = time.monotonic()
        y = x
        for model in made:
            y = model(y)
            if how == "by hand":
                torch.cuda.synchronize()
        if how == "accelerate":
            # The last one has nobody after it.
            last.offload()
        sums.append(float(y.double().sum()))
        took.append(time.monotonic() - began)
    assert len(set(sums)) == 1, sums
    print(json.dumps({"took": took, "sum": sums[0], "prepared": prepared}))


def by_hand() -> None:
    """As accelerate's hooks, where it is not there."""
    import torch

    made = models(torch)
    before: list[Any] = []

    def begin(module: Any, args: Any) -> None:
        if before and before[0] is not module:
            before.pop().to("cpu")
        if not before:
            before.append(module.to("cuda"))

    for model in made:
        model.register_forward_pre_hook(begin)
    x = torch.ones(4096, 8192, device="cuda", dtype=torch.bfloat16) / 64
    took = []
    for _ in range(3):
        began = time.monotonic()
        y = x
        for model in made:
            y = model(y)
        total = float(y.double().sum())
        took.append(time.monotonic() - began)
    print(json.dumps({"took": took, "sum": total, "prepared": 0}))


def in_turn() -> None:
    say("")
    say(f"| three models of {MODEL_BYTES // GIB} GiB in turn, under {(MODEL_BYTES * 11 // 4 + GIB // 4) / GIB:.2f} GiB | a round | prepared in | times |")
    say("| --- | --- | --- | --- |")
    found = {}
    have_accelerate = subprocess.run([sys.executable, "-c", "import accelerate"], capture_output=True, check=False).returncode == 0
    peer = ["turns", "accelerate"] if have_accelerate else ["by_hand"]
    for name, words in (("`offload([a, b, c])`", ["turns", "millpond"]), ("`cpu_offload_with_hook`" if have_accelerate else "`.to` by hand", peer)):
        done = part(words)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            say(f"| {name} | failed: {done.stderr[-600:]} | | |")
            continue
        one = json.loads(lines[-1])
        found[name] = one
        best = min(one["took"][1:])
        first = min(next(iter(found.values()))["took"][1:])
        equal = one["sum"] == next(iter(found.values()))["sum"]
        all_took = ", ".join(f"{1000 * each:.0f}" for each in one["took"])
        say(f"| {name} | {all_took} ms | {one['prepared']:.1f} s | {best / first:.2f}{'' if equal else ', NOT EQUAL'} |")


# ---- an option that nobody uses ----------------------------------------------------------------------


def unused() -> None:
    import millpond.torch

    millpond.torch.enable()
    import torch

    def measure() -> float:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(64, 64, device="cuda")
        best = 1e9
        for _ in range(8):
            torch.cuda.synchronize()
            began = time.monotonic()
            for _ in range(50):
                net(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.synchronize()
            best = min(best, (time.monotonic() - began) / 50)
        return 1e6 * best

    measure()
    before = [measure(), measure()]
    millpond.torch.offload_optimizers()
    # Its optimizer has no state: the hooks are there, and do nothing.
    after = [measure(), measure()]
    say("")
    say("| a small net with SGD, launch-bound | a step |")
    say("| --- | --- |")
    say(f"| nothing is asked for | {before[0]:.0f} and {before[1]:.0f} µs |")
    say(f"| `offload_optimizers()`, with nothing to offload | {after[0]:.0f} and {after[1]:.0f} µs |")


# ---- all ---------------------------------------------------------------------------------------------


def say(line: str) -> None:
    print(line, flush=True)
    if os.environ.get("OFFLOAD_OUT"):
        with open(os.environ["OFFLOAD_OUT"], "a", encoding="utf-8") as file:
            file.write(line + "\n")


def part(words: list[str], more: dict[str, str] | None = None, *, is_shown: bool = False) -> subprocess.CompletedProcess[str]:
    command, environment = [sys.executable, __file__, *words], {**os.environ, **(more or {})}
    return subprocess.run(command, env=environment, capture_output=not is_shown, text=True, check=False, timeout=300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="the tables go to this file, too")
    parser.add_argument("part", nargs="*", help="gpt, limit, turns, unused; all of them by default")
    arguments = parser.parse_args()
    if arguments.out:
        os.environ["OFFLOAD_OUT"] = str(Path(arguments.out).absolute())
    alone = {"gpt": gpt, "train": train, "unused": unused, "by_hand": by_hand}
    if len(arguments.part) > 0 and arguments.part[0] == "turns":
        return turns(arguments.part[1])
    if len(arguments.part) > 0 and arguments.part[0] == "batches":
        return batches(arguments.part[1:])
    if len(arguments.part) == 1 and arguments.part[0] in alone and "OFFLOAD_LIMIT" in os.environ:
        return alone[arguments.part[0]]()
    os.environ["OFFLOAD_LIMIT"] = f"/tmp/offload-limit-{os.getpid()}.json"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    for name in arguments.part or ["gpt", "limit", "turns", "unused"]:
        began = time.monotonic()
        try:
            if name == "limit":
                under_a_limit()
            elif name == "turns":
                in_turn()
            else:
                if part([name], is_shown=True).returncode != 0:
                    say(f"{name} failed")
        except Exception as error:
            say(f"{name} failed: {type(error).__name__}: {error}")
        print(f"({name}: {time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
