"""Runs one of seven jobs with PyTorch's own allocator, and writes what its memory did to a snapshot. `millpond replay`
reads it.

    python record.py gpt|lora|experts|generate|serve|diffuse|resnet FILE.pickle.gz [seconds [seed]]

* `gpt`: a language model is trained on batches and texts of any length.
* `lora`: adapters of a frozen model of 1.4 billion parameters are trained, with checkpoints, on texts of any length.
* `experts`: a language model with eight experts a layer, of which each token goes to two, is trained.
* `generate`: answers to one batch of questions after the other, whose keys and values grow by `torch.cat`.
* `serve`: the same for sixteen questions at once, each with its own cache, that come and go.
* `diffuse`: pictures of several sizes from a U-Net with attention, and a decoder.
* `resnet`: a ResNet-50 is trained on pictures of several sizes, in batches of several sizes.
"""

from __future__ import annotations

import gzip
import pickle
import random
import sys
import time
from typing import Any, Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
HALF = torch.bfloat16


class Lora(nn.Module):
    """A linear layer that stays as it is, and a narrow one beside it that is trained."""

    def __init__(self, width: int, outputs: int, rank: int = 16) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, outputs, bias=False, dtype=HALF)
        self.frozen.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.frozen(x) + self.up(F.dropout(self.down(x.float()), 0.05)).to(HALF)


class LoraBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = (nn.RMSNorm(width, dtype=HALF) for _ in range(2))
        self.query, self.key, self.value, self.out = (Lora(width, width) for _ in range(4))
        self.gate, self.wide = (nn.Linear(width, 3 * width, bias=False, dtype=HALF) for _ in range(2))
        self.narrow = nn.Linear(3 * width, width, bias=False, dtype=HALF)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        normed = self.before(x)
        query, key, value = (
            part(normed).view(rows, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        normed = self.between(x)
        return x + self.narrow(F.silu(self.gate(normed)) * self.wide(normed))


def lora() -> Iterator[None]:
    width, vocabulary = 2048, 32_000
    words = nn.Embedding(vocabulary, width, dtype=HALF, device=DEVICE)
    blocks = nn.ModuleList(LoraBlock(width, 16) for _ in range(24)).to(DEVICE)
    head = nn.Linear(width, vocabulary, bias=False, dtype=HALF, device=DEVICE)
    for parameter in [*words.parameters(), *head.parameters()]:
        parameter.requires_grad_(False)
    for block in blocks:
        for part in (block.gate, block.wide, block.narrow, block.before, block.between):
            part.requires_grad_(False)
    trained = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    while True:
        length = min(2048, int(random.lognormvariate(6.2, 0.6)) + 16)
        text = torch.randint(vocabulary, (random.choice((2, 4, 4, 8)), length + 1), device=DEVICE)
        x = words(text[:, :-1]).requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        loss = F.cross_entropy(head(x).flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        yield


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any, past: list[Any] | None = None, is_causal: bool = True) -> Any:
        """`past`: keys and values so far, which this makes longer."""
        rows, length, width = x.shape
        parts = self.mix(self.norm(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
            past[:] = key, value
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal and length > 1)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))


def widened(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


class Gpt(nn.Module):
    def __init__(self, width: int = 1024, layers: int = 8, vocabulary: int = 32_000, longest: int = 2048) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(nn.ModuleList((Attention(width, 16), widened(width))) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Any) -> Any:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for attend, widen in self.layers:
            x = attend(x)
            x = x + widen(x)
        return self.head(self.norm(x))


def gpt() -> Iterator[None]:
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    while True:
        text = torch.randint(32_000, (random.randint(2, 12), random.randint(128, 2048)), device=DEVICE)
        with torch.autocast(DEVICE, HALF):
            loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        yield


class Experts(nn.Module):
    def __init__(self, width: int, count: int = 8) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Any) -> Any:
        flat = self.norm(x).flatten(0, 1)
        weights, chosen = self.route(flat).softmax(1).topk(2, 1)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, which = torch.where(chosen == number)
            if len(token):
                out = expert(flat[token]) * weights[token, which].unsqueeze(1)
                mixed = mixed.index_add(0, token, out.to(mixed.dtype))
        return x + mixed.view_as(x)


def experts() -> Iterator[None]:
    width, vocabulary = 1024, 32_000
    words = nn.Embedding(vocabulary, width)
    layers = [part for _ in range(8) for part in (Attention(width, 16), Experts(width))]
    model = nn.ModuleList([words, *layers, nn.Linear(width, vocabulary)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    while True:
        text = torch.randint(vocabulary, (random.randint(4, 12), random.randint(200, 1024)), device=DEVICE)
        with torch.autocast(DEVICE, HALF):
            x = words(text[:, :-1])
            for layer in model[1:]:
                x = layer(x)
            loss = F.cross_entropy(x.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        yield


class Decoder(nn.Module):
    """A language model that keeps keys and values."""

    def __init__(self, width: int = 2048, layers: int = 20, vocabulary: int = 32_000) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.layers = nn.ModuleList(nn.ModuleList((Attention(width, 16), widened(width))) for _ in range(layers))

    def forward(self, words: Any, cache: list[list[Any]]) -> Any:
        """The next word of each row."""
        x = self.words(words)
        for (attend, widen), past in zip(self.layers, cache):
            x = attend(x, past)
            x = x + widen(x)
        return self.head(x[:, -1:]).argmax(-1)

    def no_cache(self) -> list[list[Any]]:
        return [[] for _ in self.layers]


def generate() -> Iterator[None]:
    torch.set_grad_enabled(False)
    model = Decoder().to(DEVICE, HALF)
    while True:
        word = torch.randint(32_000, (random.randint(2, 24), random.randint(32, 900)), device=DEVICE)
        cache = model.no_cache()
        for _ in range(random.randint(60, 250)):
            word = model(word, cache)
            word.tolist()
            yield
        del cache


def serve() -> Iterator[None]:
    torch.set_grad_enabled(False)
    model = Decoder().to(DEVICE, HALF)
    running: list[tuple[Any, list[list[Any]], int]] = []
    while True:
        while len(running) < 16:
            question = torch.randint(32_000, (1, random.randint(64, 3000)), device=DEVICE)
            cache = model.no_cache()
            running.append((model(question, cache), cache, random.randint(16, 160)))
        running = [(model(word, cache), cache, left - 1) for word, cache, left in running if left]
        running[0][0].tolist()
        yield


class Residual(nn.Module):
    def __init__(self, entries: int, outputs: int) -> None:
        super().__init__()
        self.before, self.between = nn.GroupNorm(32, entries), nn.GroupNorm(32, outputs)
        self.first = nn.Conv2d(entries, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.past = nn.Conv2d(entries, outputs, 1)

    def forward(self, x: Any) -> Any:
        inner = self.first(F.silu(self.before(x)))
        return self.past(x) + self.second(F.silu(self.between(inner)))


class Picture(nn.Module):
    """Attention between the places of a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend = Attention(width, 8)

    def forward(self, x: Any) -> Any:
        rows, width, high, wide = x.shape
        flat = self.attend(x.flatten(2).transpose(1, 2), is_causal=False)
        return flat.transpose(1, 2).view(rows, width, high, wide)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.entry, self.exit = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        last = widths[0]
        for level, width in enumerate(widths):
            parts: list[nn.Module] = [Residual(last, width), Residual(width, width)]
            self.down.append(nn.Sequential(*parts, Picture(width)) if level else nn.Sequential(*parts))
            last = width
        self.middle = nn.Sequential(Residual(last, last), Picture(last), Residual(last, last))
        for level, width in reversed(list(enumerate(widths))):
            parts = [Residual(last + width, width), Residual(width, width)]
            self.up.append(nn.Sequential(*parts, Picture(width)) if level else nn.Sequential(*parts))
            last = width

    def forward(self, x: Any) -> Any:
        x, skipped = self.entry(x), []
        for level, part in enumerate(self.down):
            x = part(x)
            skipped.append(x)
            if level + 1 < len(self.down):
                x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for level, part in enumerate(self.up):
            if level:
                x = F.interpolate(x, scale_factor=2.0)
            x = part(torch.cat((x, skipped.pop()), 1))
        return self.exit(x)


def diffuse() -> Iterator[None]:
    torch.set_grad_enabled(False)
    model = UNet().to(DEVICE, HALF)
    widths = (512, 512, 256, 128)
    parts: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1)]
    for entries, outputs in zip(widths, widths[1:]):
        parts += [Residual(entries, outputs), Residual(outputs, outputs), nn.Upsample(scale_factor=2.0)]
    decoder = nn.Sequential(*parts, nn.Conv2d(128, 3, 3, padding=1)).to(DEVICE, HALF)
    while True:
        high, wide = (8 * random.randint(6, 16) for _ in range(2))
        noise = torch.randn(random.randint(1, 4), 4, high, wide, device=DEVICE, dtype=HALF)
        for _ in range(20):
            # With and without what was asked for, at once.
            with_text, without = model(torch.cat((noise, noise))).chunk(2)
            noise = 0.9 * noise - 0.1 * (without + 7.5 * (with_text - without))
            yield
        decoder(noise).float().cpu()
        yield


def normed(entries: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(entries, outputs, side, stride, padding=side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, entries: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.inner = nn.Sequential(
            normed(entries, width, 1),
            nn.ReLU(inplace=True),
            normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            normed(width, outputs, 1),
        )
        same = entries == outputs and stride == 1
        self.past = nn.Identity() if same else normed(entries, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        return F.relu(self.past(x) + self.inner(x), inplace=True)


def resnet() -> Iterator[None]:
    parts: list[nn.Module] = [normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    entries = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            parts.append(Bottleneck(entries, width, stride if number == 0 else 1))
            entries = 4 * width
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(entries, 1000)]
    model = nn.Sequential(*parts).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while True:
        rows, side = random.choice((32, 48, 64)), 32 * random.randint(4, 14)
        pictures = torch.randn(rows, 3, side, side, device=DEVICE)
        with torch.autocast(DEVICE, HALF):
            loss = F.cross_entropy(model(pictures), torch.randint(1000, (rows,), device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        yield


JOBS: dict[str, Callable[[], Iterator[None]]] = {
    "gpt": gpt,
    "lora": lora,
    "experts": experts,
    "generate": generate,
    "serve": serve,
    "diffuse": diffuse,
    "resnet": resnet,
}
# Enough for half a minute of each. A recording that is longer than its buffer loses its beginning: what was live then
# comes to lie in a replay as PyTorch had laid it, all at once.
MOST_EVENTS = 3_000_000


def main() -> None:
    name, path = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20.0
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 7
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=MOST_EVENTS)
    steps, start = 0, time.perf_counter()
    for _ in JOBS[name]():
        steps += 1
        if time.perf_counter() - start > seconds:
            break
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    with gzip.open(path, "wb", compresslevel=6) as file:
        pickle.dump(snapshot, file, protocol=4)
    stats = torch.cuda.memory_stats()
    events = sum(len(trace) for trace in snapshot["device_traces"])
    if events >= MOST_EVENTS:
        sys.exit(f"{name}: more than {MOST_EVENTS} events; record fewer seconds")
    peaks = (stats[f"{what}_bytes.all.peak"] >> 20 for what in ("requested", "reserved"))
    print(f"{name}: {steps} steps, {events} events in {took:.1f} s; peaks", *peaks, "MiB requested, reserved")


if __name__ == "__main__":
    main()
