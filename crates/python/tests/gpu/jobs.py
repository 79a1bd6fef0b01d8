"""Trains a small model, with PyTorch's allocator or millpond, and prints what came of it as JSON.

    python jobs.py mlp|conv|gpt|transformers native|millpond [steps]

Seeds and settings are fixed, so that both allocators must give the same losses, bit by bit.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from typing import Any, Callable

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        parts = self.mix(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.wide(self.between(x))


class Mean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean((2, 3))


class Gpt(nn.Module):
    """A small GPT; batches and lengths vary from step to step."""

    def __init__(self, vocabulary: int = 8192, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, 8) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Any) -> Any:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.norm(self.blocks(self.words(words) + self.places(places))))


def mlp() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def loss(model: nn.Module, step: int) -> Any:
        rows = 512 + 64 * (step % 7)
        return F.cross_entropy(model(torch.randn(rows, 784, device="cuda")), target(rows, 10))

    return model, loss


def conv() -> tuple[nn.Module, Any]:
    def layer(entries: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(entries, outputs, 3, padding=1, stride=2), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    model = nn.Sequential(
        layer(3, 64), layer(64, 128), layer(128, 256), Mean(), nn.Linear(256, 10)
    )

    def loss(model: nn.Module, step: int) -> Any:
        side = 128 + 32 * (step % 5)
        return F.cross_entropy(model(torch.randn(64, 3, side, side, device="cuda")), target(64, 10))

    return model, loss


def gpt() -> tuple[nn.Module, Any]:
    def loss(model: nn.Module, step: int) -> Any:
        generator = torch.Generator().manual_seed(step)
        rows = int(torch.randint(4, 17, (), generator=generator))
        length = int(torch.randint(128, 1025, (), generator=generator))
        words = torch.randint(8192, (rows, length + 1), device="cuda")
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return Gpt(), loss


def transformers() -> tuple[nn.Module, Any]:
    """A GPT-2 of the package transformers, without weights from elsewhere."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 8192, "n_positions": 1024, "n_embd": 512, "n_layer": 6, "n_head": 8}
    # Those that it has by default are no words of so few.
    words_of_its_own = {"bos_token_id": None, "eos_token_id": None}

    def loss(model: nn.Module, step: int) -> Any:
        words = torch.randint(8192, (8, 256 + 64 * (step % 9)), device="cuda")
        return model(input_ids=words, labels=words, use_cache=False).loss

    return GPT2LMHeadModel(GPT2Config(**sizes, **words_of_its_own)), loss


JOBS = {"mlp": mlp, "conv": conv, "gpt": gpt, "transformers": transformers}


def target(rows: int, classes: int) -> Any:
    return torch.randint(classes, (rows,), device="cuda")


def checkpoint_parts(model: nn.Module) -> None:
    """The model keeps the inputs of its parts, and computes the rest again for the gradients."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return
    for part in getattr(model, "blocks", model):
        part.forward = functools.partial(checkpoint, part.forward, use_reentrant=False)


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """The step as a graph, after some steps that are not."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay


def steps_of(job: str, way: str = "eager") -> Callable[[int], float]:
    """Makes the model, and returns what trains it by one step and gives that step's loss.

    The ways are those of `proof.py`. Where work is compiled or captured, its shapes are always those of the first step.
    """
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    model, loss_of = JOBS[job]()
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=way == "captured")
    if way == "checkpointing":
        checkpoint_parts(model)
    elif way in ("compiled", "reduce-overhead"):
        model.compile(mode="default" if way == "compiled" else way, dynamic=False)
    is_static = way in ("compiled", "reduce-overhead", "captured")

    def once(number: int) -> Any:
        if way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=way == "autocast"):
            loss = loss_of(model, 0 if is_static else number)
        loss.backward()
        optimizer.step()
        return loss

    if way == "captured":
        replay = captured(lambda: once(0))
        return lambda _number: float(replay().item())
    return lambda number: float(once(number).item())


def train(job: str, steps: int) -> dict[str, Any]:
    step = steps_of(job)
    losses, times, least_free = [], [], torch.cuda.mem_get_info()[0]
    for number in range(steps):
        start = time.perf_counter()
        losses.append(step(number))
        times.append(time.perf_counter() - start)
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    # The same shapes again: what is timed is the steady state.
    steady = []
    for number in range(steps):
        start = time.perf_counter()
        step(number)
        steady.append(time.perf_counter() - start)
        least_free = min(least_free, torch.cuda.mem_get_info()[0])
    return {"losses": losses, "step_ms": statistics.median(steady) * 1e3, "least_free": least_free}


def main() -> None:
    job, allocator = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 40
    if allocator == "millpond":
        import millpond

        millpond.torch.enable()
    # Loads the kernels' libraries, which take memory of the device for themselves.
    warm = torch.randn(256, 256, device="cuda", requires_grad=True)
    (warm @ warm).sum().backward()
    del warm
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    result = train(job, steps)
    figures = torch.cuda.memory_stats()
    requested = figures["requested_bytes.all.peak"]
    drop = before - result.pop("least_free")
    result |= {
        "job": job,
        "allocator": allocator,
        "requested_mib": requested / 2**20,
        "reserved_over_requested": figures["reserved_bytes.all.peak"] / requested,
        "driver_over_requested": drop / requested,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
