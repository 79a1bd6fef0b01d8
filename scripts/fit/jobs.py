"""Jobs whose memory `scripts/fit/run` records: `python jobs.py NAME` runs one, `python jobs.py` names them all.

A job is a family with parameters. Sizes are those of jobs that people run. Few layers suffice: more of them repeat the same shapes.
What decides sizes is drawn on the host, by a seed that the name gives, since nothing is computed in a prediction.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from typing import Any, Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

HALF = torch.bfloat16
CUDA = torch.device("cuda")

Job = Callable[[], None]
JOBS: dict[str, Job] = {}


def job(name: str, family: Callable[..., None], /, **options: Any) -> None:
    JOBS[name] = lambda: family(**options)


def number(of: int | tuple[int, int]) -> int:
    """A fixed number, or one from a range."""
    return of if isinstance(of, int) else random.randint(*of)


def words(rows: int, length: int, vocabulary: int) -> Any:
    return torch.randint(vocabulary, (rows, length), device=CUDA)


def optimizer_of(kind: str, weights: Any) -> Any:
    weights = [weight for weight in weights if weight.requires_grad]
    return {
        "adamw": lambda: torch.optim.AdamW(weights, lr=1e-4),
        "fused": lambda: torch.optim.AdamW(weights, lr=1e-4, fused=True),
        "loop": lambda: torch.optim.AdamW(weights, lr=1e-4, foreach=False),
        "sgd": lambda: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        "rmsprop": lambda: torch.optim.RMSprop(weights, lr=1e-4),
        "adagrad": lambda: torch.optim.Adagrad(weights, lr=1e-4),
    }[kind]()


def train(
    model: Any,
    loss_of: Callable[[Any], Any],
    steps: int = 4,
    optimizer: str = "adamw",
    accumulate: int = 1,
    autocast: torch.dtype | None = HALF,
    scaler: bool = False,
    clip: bool = True,
    evaluate: Callable[[Any], Any] | None = None,
    every: int = 3,
    average: bool = False,
) -> None:
    """A plain loop. `evaluate` runs after so many steps."""
    steps_of = optimizer_of(optimizer, model.parameters())
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    copy = [weight.detach().clone() for weight in model.parameters()] if average else []
    for step in range(steps):
        for _ in range(accumulate):
            with torch.autocast("cuda", autocast or HALF, enabled=autocast is not None):
                loss = loss_of(model) / accumulate
            scale.scale(loss).backward()
        scale.unscale_(steps_of)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(steps_of)
        scale.update()
        steps_of.zero_grad(set_to_none=True)
        if copy:
            torch._foreach_lerp_(copy, [weight.detach() for weight in model.parameters()], 0.01)
        if evaluate is not None and step % every == every - 1:
            model.eval()
            with torch.no_grad(), torch.autocast("cuda", autocast or HALF, enabled=autocast is not None):
                evaluate(model)
            model.train()


# Transformers


def language_model(kind: str, layers: int, vocabulary: int = 32_000, width: int = 1024, heads: int = 16) -> Any:
    import transformers as hf

    small = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocabulary}
    gated = {**small, "intermediate_size": width * 11 // 4 // 64 * 64, "num_key_value_heads": max(1, heads // 4)}
    config = {
        "gpt2": lambda: hf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads, vocab_size=vocabulary, n_positions=4096),
        "llama": lambda: hf.LlamaConfig(**gated),
        "qwen": lambda: hf.Qwen2Config(**gated),
        "mistral": lambda: hf.MistralConfig(**gated, sliding_window=None),
        "neox": lambda: hf.GPTNeoXConfig(**small, intermediate_size=4 * width),
        "bert": lambda: hf.BertConfig(**small, intermediate_size=4 * width, max_position_embeddings=4096),
        "roberta": lambda: hf.RobertaConfig(**small, intermediate_size=4 * width, max_position_embeddings=4096),
        "deberta": lambda: hf.DebertaV2Config(**small, intermediate_size=4 * width),
        "t5": lambda: hf.T5Config(
            d_model=width, d_ff=4 * width, num_layers=layers, num_heads=heads, vocab_size=vocabulary, decoder_start_token_id=0
        ),
        "bart": lambda: hf.BartConfig(
            d_model=width,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_ffn_dim=4 * width,
            decoder_ffn_dim=4 * width,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            vocab_size=vocabulary,
            max_position_embeddings=4096,
        ),
    }[kind]()
    masked = {"bert": hf.AutoModelForMaskedLM, "roberta": hf.AutoModelForMaskedLM, "deberta": hf.AutoModelForMaskedLM}
    seq2seq = {"t5": hf.AutoModelForSeq2SeqLM, "bart": hf.AutoModelForSeq2SeqLM}
    return (masked | seq2seq).get(kind, hf.AutoModelForCausalLM).from_config(config)


def texts(
    kind: str,
    layers: int = 6,
    rows: int | tuple[int, int] = 8,
    length: int | tuple[int, int] = 1024,
    vocabulary: int = 32_000,
    width: int = 1024,
    heads: int = 16,
    checkpoints: bool = False,
    lora: int = 0,
    pure: bool = False,
    evaluation: tuple[int, int] | None = None,
    **how: Any,
) -> None:
    """A language model learns texts, of one length or of any."""
    model = language_model(kind, layers, vocabulary, width, heads).to(CUDA, HALF if pure or lora else torch.float32)
    if lora:
        from peft import LoraConfig, get_peft_model

        if checkpoints:
            model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(r=lora, target_modules="all-linear", lora_dropout=0.05))
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()

    def loss_of(model: Any, rows: Any = rows, length: Any = length) -> Any:
        text = words(number(rows), number(length), vocabulary)
        return model(input_ids=text, labels=text).loss

    evaluate = evaluation and (lambda model: [loss_of(model, *evaluation) for _ in range(3)])
    train(model, loss_of, evaluate=evaluate, **{"autocast": None if pure else HALF, **how})


def trainer(kind: str, rows: int = 8, longest: int = 1024, steps: int = 4, **how: Any) -> None:
    """Transformers' Trainer, with texts of any length, padded to the longest of a batch."""
    import tempfile

    import transformers as hf

    class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, at: int) -> Any:
            text = torch.randint(32_000, (random.randint(longest // 4, longest),))
            return {"input_ids": text, "labels": text}

    def padded(texts: list[Any]) -> Any:
        return {
            name: nn.utils.rnn.pad_sequence([text[name] for text in texts], batch_first=True) for name in texts[0]
        }

    arguments = hf.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        max_steps=steps,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_steps=2,
        bf16=True,
        **how,
    )
    texts = Texts()
    few = torch.utils.data.Subset(texts, range(32))
    hf.Trainer(language_model(kind, 6), arguments, train_dataset=texts, eval_dataset=few, data_collator=padded).train()


def preference(layers: int = 6, rows: int = 4, length: tuple[int, int] = (256, 1024), steps: int = 4) -> None:
    """A model learns to prefer one of two answers, beside a copy that stays as it was."""
    model, before = (language_model("llama", layers, width=1536).to(CUDA, HALF) for _ in range(2))
    before.requires_grad_(False).eval()

    def likely(model: Any, text: Any) -> Any:
        logits = model(input_ids=text).logits[:, :-1].float().log_softmax(-1)
        return logits.gather(2, text[:, 1:, None]).squeeze(2).sum(1)

    def loss_of(model: Any) -> Any:
        text = words(2 * rows, number(length), 32_000)
        with torch.no_grad():
            known = likely(before, text)
        better, worse = (likely(model, text) - known).chunk(2)
        return -F.logsigmoid(0.1 * (better - worse)).mean()

    train(model, loss_of, steps, autocast=None)


def pictures_and_texts(rows: int | tuple[int, int] = 64, steps: int = 4) -> None:
    """Two towers, CLIP's."""
    import transformers as hf

    vision = hf.CLIPVisionConfig(num_hidden_layers=6, patch_size=16)
    text = hf.CLIPTextConfig(num_hidden_layers=6)
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict())).to(CUDA)

    def loss_of(model: Any) -> Any:
        count = number(rows)
        pictures = torch.randn(count, 3, 224, 224, device=CUDA)
        return model(input_ids=words(count, 77, 49_000), pixel_values=pictures, return_loss=True).loss

    train(model, loss_of, steps)


def speech(rows: int = 8, seconds: tuple[int, int] = (4, 16), steps: int = 4) -> None:
    """A wav2vec encoder over sound of any length."""
    import transformers as hf

    model = hf.Wav2Vec2Model(hf.Wav2Vec2Config(num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0)).to(CUDA)

    def loss_of(model: Any) -> Any:
        sound = torch.randn(rows, 16_000 * number(seconds), device=CUDA)
        return model(sound).last_hidden_state.float().square().mean()

    train(model, loss_of, steps)


def whisper(rows: int = 16, length: tuple[int, int] = (32, 400), steps: int = 4) -> None:
    import transformers as hf

    config = hf.WhisperConfig(encoder_layers=6, decoder_layers=6, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12)
    model = hf.WhisperForConditionalGeneration(config).to(CUDA)

    def loss_of(model: Any) -> Any:
        sound = torch.randn(rows, 80, 3000, device=CUDA)
        text = words(rows, number(length), 50_000)
        return model(input_features=sound, decoder_input_ids=text, labels=text).loss

    train(model, loss_of, steps)


# Text that is generated


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, shared: int = 1) -> None:
        super().__init__()
        self.heads, self.few = heads, heads // shared
        self.norm, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * width // shared)
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, past: list[Any] | None = None) -> Any:
        rows, length, width = x.shape
        normed, each = self.norm(x), width // self.heads
        query = self.query(normed).view(rows, length, self.heads, each).transpose(1, 2)
        key, value = (
            part.reshape(rows, length, self.few, each).transpose(1, 2) for part in self.pair(normed).chunk(2, -1)
        )
        if past is not None:
            if past:
                key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
            past[:] = key, value
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1, enable_gqa=self.few < self.heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Decoder(nn.Module):
    def __init__(self, width: int = 2048, layers: int = 10, vocabulary: int = 32_000, shared: int = 1) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.layers = nn.ModuleList(Layer(width, width // 128, shared) for _ in range(layers))

    def forward(self, words: Any, cache: list[list[Any]]) -> Any:
        x = self.words(words)
        for layer, past in zip(self.layers, cache):
            x = layer(x, past)
        return self.head(x[:, -1:]).argmax(-1)


@torch.no_grad()
def answers(rows: Any = (2, 16), question: Any = (32, 900), answer: Any = (20, 80), rounds: int = 3, **model: Any) -> None:
    """One batch of questions after the other, whose keys and values grow."""
    decoder = Decoder(**model).to(CUDA, HALF)
    for _ in range(rounds):
        word, cache = words(number(rows), number(question), 32_000), [[] for _ in decoder.layers]
        for _ in range(number(answer)):
            word = decoder(word, cache)


@torch.no_grad()
def served(at_once: int = 12, question: Any = (64, 2000), answer: Any = (8, 60), rounds: int = 60, **model: Any) -> None:
    """Questions that come and go, each with a cache of its own."""
    decoder = Decoder(**model).to(CUDA, HALF)
    running: list[Any] = []
    for _ in range(rounds):
        while len(running) < at_once:
            cache: list[list[Any]] = [[] for _ in decoder.layers]
            running.append((decoder(words(1, number(question), 32_000), cache), cache, number(answer)))
        running = [(decoder(word, cache), cache, left - 1) for word, cache, left in running if left]


@torch.no_grad()
def generated(kind: str, rows: int = 8, question: int = 400, answer: int = 60, rounds: int = 2, beams: int = 1) -> None:
    """Transformers' generate."""
    model = language_model(kind, 8, width=2048).to(CUDA, HALF).eval()
    for at in range(rounds):
        text = words(rows, question * (at + 1), 32_000)
        model.generate(
            text, attention_mask=torch.ones_like(text), max_new_tokens=answer, do_sample=beams == 1, num_beams=beams, pad_token_id=0
        )


@torch.no_grad()
def paged(pages: int = 3000, rounds: int = 40, layers: int = 10, width: int = 2048) -> None:
    """Caches in pages that are allocated once; activations of any length beside them."""
    decoder = Decoder(width, layers).to(CUDA, HALF)
    kept = [torch.empty(2, pages, 16, width, dtype=HALF, device=CUDA) for _ in range(layers)]
    for _ in range(rounds):
        decoder(words(1, number((16, 4096)), 32_000), [[] for _ in kept])


# Pictures


def classify(name: str, rows: Any = 32, side: Any = 224, source: str = "torchvision", last: bool = False, **how: Any) -> None:
    if source == "timm":
        import timm

        model = timm.create_model(name, num_classes=1000)
    else:
        import torchvision

        model = torchvision.models.get_model(name, num_classes=1000)
    layout = torch.channels_last if last else torch.contiguous_format
    model = model.to(CUDA).to(memory_format=layout)

    def loss_of(model: Any, times: int = 1) -> Any:
        count, high = times * number(rows), number(side) // 32 * 32
        pictures = torch.randn(count, 3, high, high, device=CUDA).to(memory_format=layout)
        out = model(pictures)
        out = out.logits if hasattr(out, "logits") else out
        return F.cross_entropy(out, torch.randint(1000, (count,), device=CUDA))

    if how.pop("evaluated", False):
        how["evaluate"] = lambda model: [loss_of(model, 2) for _ in range(2)]
    train(model, loss_of, **{"optimizer": "sgd", "clip": False, **how})


def segment(name: str, rows: int = 8, side: Any = 512, **how: Any) -> None:
    import torchvision

    model = torchvision.models.get_model(name, num_classes=21, weights_backbone=None).to(CUDA)

    def loss_of(model: Any) -> Any:
        high = number(side) // 32 * 32
        out = model(torch.randn(rows, 3, high, high, device=CUDA))["out"]
        return F.cross_entropy(out, torch.randint(21, (rows, high, high), device=CUDA))

    train(model, loss_of, **{"optimizer": "sgd", **how})


def detect(name: str, rows: int = 4, side: Any = (480, 800), **how: Any) -> None:
    """TorchVision's detectors, in pictures of any shape, with any number of objects."""
    import torchvision

    model = torchvision.models.get_model(name, num_classes=91, weights_backbone=None).to(CUDA)

    def loss_of(model: Any) -> Any:
        pictures, targets = [], []
        for _ in range(rows):
            high, wide, count = number(side), number(side), number((1, 20))
            pictures.append(torch.rand(3, high, wide, device=CUDA))
            boxes = torch.rand(count, 4).sort().values[:, [0, 1, 2, 3]] * min(high, wide)
            boxes = torch.stack((boxes[:, 0], boxes[:, 1], boxes[:, 2] + 1, boxes[:, 3] + 1), 1).to(CUDA)
            target = {"boxes": boxes, "labels": torch.randint(1, 91, (count,), device=CUDA)}
            if "mask" in name:
                target["masks"] = torch.zeros(count, high, wide, dtype=torch.uint8, device=CUDA)
            targets.append(target)
        return sum(model(pictures, targets).values())

    train(model, loss_of, **{"optimizer": "sgd", "clip": False, **how})


def video(rows: int = 8, frames: Any = 16, steps: int = 4) -> None:
    import torchvision

    model = torchvision.models.video.r3d_18(num_classes=400).to(CUDA)

    def loss_of(model: Any) -> Any:
        out = model(torch.randn(rows, 3, number(frames), 112, 112, device=CUDA))
        return F.cross_entropy(out, torch.randint(400, (rows,), device=CUDA))

    train(model, loss_of, steps, "sgd", clip=False)


class Residual(nn.Module):
    def __init__(self, entries: int, outputs: int) -> None:
        super().__init__()
        self.before, self.between = nn.GroupNorm(32, entries), nn.GroupNorm(32, outputs)
        self.first = nn.Conv2d(entries, outputs, 3, padding=1)
        self.second, self.past = nn.Conv2d(outputs, outputs, 3, padding=1), nn.Conv2d(entries, outputs, 1)

    def forward(self, x: Any) -> Any:
        inner = self.first(F.silu(self.before(x)))
        return self.past(x) + self.second(F.silu(self.between(inner)))


class Places(nn.Module):
    """Attention between the places of a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.GroupNorm(32, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        rows, width, high, wide = x.shape
        flat = self.norm(x).flatten(2).transpose(1, 2)
        parts = self.mix(flat).view(rows, high * wide, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(rows, high * wide, width)
        return x + self.out(mixed).transpose(1, 2).view(rows, width, high, wide)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...], entries: int = 4) -> None:
        super().__init__()
        self.entry, self.exit = nn.Conv2d(entries, widths[0], 3, padding=1), nn.Conv2d(widths[0], entries, 3, padding=1)
        self.down, self.up, last = nn.ModuleList(), nn.ModuleList(), widths[0]
        for level, width in enumerate(widths):
            self.down.append(nn.Sequential(Residual(last, width), Places(width) if level else nn.Identity(), Residual(width, width)))
            last = width
        for level, width in reversed(list(enumerate(widths))):
            self.up.append(nn.Sequential(Residual(last + width, width), Places(width) if level else nn.Identity()))
            last = width

    def forward(self, x: Any) -> Any:
        x, skipped = self.entry(x), []
        for level, part in enumerate(self.down):
            x = part(F.avg_pool2d(x, 2) if level else x)
            skipped.append(x)
        for level, part in enumerate(self.up):
            x = part(torch.cat((F.interpolate(x, scale_factor=2.0) if level else x, skipped.pop()), 1))
        return self.exit(x)


def denoise(widths: tuple[int, ...] = (320, 640, 1280), rows: Any = (2, 8), side: Any = (32, 96), **how: Any) -> None:
    """A diffusion model learns."""
    model = UNet(widths).to(CUDA)

    def loss_of(model: Any) -> Any:
        high, wide = (number(side) // 8 * 8 for _ in range(2))
        noise = torch.randn(number(rows), 4, high, wide, device=CUDA)
        return F.mse_loss(model(noise).float(), noise)

    train(model, loss_of, **how)


@torch.no_grad()
def diffuse(
    widths: tuple[int, ...] = (320, 640, 1280), rows: Any = (1, 4), side: Any = (48, 128), pictures: int = 4, steps: int = 8
) -> None:
    """Pictures of any size from a diffusion model and a decoder."""
    model = UNet(widths).to(CUDA, HALF)
    parts: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1)]
    for entries, outputs in ((512, 512), (512, 256), (256, 128)):
        parts += [Residual(entries, outputs), Residual(outputs, outputs), nn.Upsample(scale_factor=2.0)]
    decoder = nn.Sequential(*parts, nn.Conv2d(128, 3, 3, padding=1)).to(CUDA, HALF)
    for _ in range(pictures):
        high, wide = (number(side) // 8 * 8 for _ in range(2))
        noise = torch.randn(number(rows), 4, high, wide, device=CUDA, dtype=HALF)
        for _ in range(steps):
            with_text, without = model(torch.cat((noise, noise))).chunk(2)
            noise = 0.9 * noise - 0.1 * (without + 7.5 * (with_text - without))
        decoder(noise).float().cpu()


def adversaries(rows: Any = 64, side: int = 64, steps: int = 6) -> None:
    """Two networks, each with an optimizer, learn from each other."""

    def convolutions(widths: tuple[int, ...], up: bool) -> nn.Sequential:
        parts: list[nn.Module] = []
        for entries, outputs in zip(widths, widths[1:]):
            parts += [nn.Upsample(scale_factor=2.0)] if up else []
            parts += [nn.Conv2d(entries, outputs, 3, 1 if up else 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, True)]
        return nn.Sequential(*parts).to(CUDA)

    maker, judge = convolutions((512, 512, 256, 128, 3), True), convolutions((3, 128, 256, 512, 1), False)
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4) for model in (maker, judge)]
    for _ in range(steps):
        count = number(rows)
        real, made = torch.randn(count, 3, side, side, device=CUDA), maker(torch.randn(count, 512, side // 16, side // 16, device=CUDA))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        loss.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        F.softplus(-judge(made)).mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()


# Graphs


def graphs(kind: str, nodes: Any, degree: int = 12, width: int = 256, layers: int = 3, **how: Any) -> None:
    """PyTorch Geometric's layers, on graphs of any size."""
    from torch_geometric import nn as pyg

    def layer(entries: int, outputs: int) -> Any:
        if kind == "gin":
            return pyg.GINConv(nn.Sequential(nn.Linear(entries, outputs), nn.ReLU(), nn.Linear(outputs, outputs)))
        if kind == "gat":
            return pyg.GATConv(entries, outputs // 4, heads=4, add_self_loops=False)
        if kind == "gcn":
            return pyg.GCNConv(entries, outputs, add_self_loops=False)
        return {"sage": pyg.SAGEConv, "transformer": pyg.TransformerConv, "graph": pyg.GraphConv}[kind](entries, outputs)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layer(width if at else 128, width) for at in range(layers))
            self.head = nn.Linear(width, 47)

        def forward(self, x: Any, edges: Any) -> Any:
            for layer in self.layers:
                x = F.dropout(F.relu(layer(x, edges)), 0.3)
            return self.head(x)

    def loss_of(model: Any) -> Any:
        count = number(nodes)
        edges = torch.randint(count, (2, degree * count), device=CUDA)
        out = model(torch.randn(count, 128, device=CUDA), edges)
        return F.cross_entropy(out, torch.randint(47, (count,), device=CUDA))

    train(Net().to(CUDA), loss_of, **{"autocast": None, "clip": False, **how})


# Mixtures of experts


class Experts(nn.Module):
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x: Any) -> Any:
        flat = self.norm(x).flatten(0, 1)
        weights = self.route(flat).softmax(1)
        mixed = torch.zeros_like(flat)
        # Each word goes to two. How many go to each expert is drawn here: it would be a value of the card.
        parts = [random.gammavariate(4.0, 1.0) for _ in self.experts]
        for at, (part, expert) in enumerate(zip(parts, self.experts)):
            count = int(2 * len(flat) * part / sum(parts))
            chosen = torch.randint(len(flat), (count,), device=CUDA)
            out = expert(flat[chosen]) * weights[chosen, at].unsqueeze(1)
            mixed = mixed.index_add(0, chosen, out.to(mixed.dtype))
        return x + mixed.view_as(x)


def experts(count: int = 8, width: int = 1024, layers: int = 4, rows: Any = (4, 12), length: Any = (200, 1024), **how: Any) -> None:
    parts = [part for _ in range(layers) for part in (Layer(width, width // 64), Experts(width, count))]
    model = nn.Sequential(nn.Embedding(32_000, width), *parts, nn.Linear(width, 32_000)).to(CUDA)

    def loss_of(model: Any) -> Any:
        text = words(number(rows), number(length), 32_000)
        return F.cross_entropy(model(text).flatten(0, 1), text.flatten())

    train(model, loss_of, **how)


# Several streams


def ahead(rows: Any = (16, 64), side: Any = (160, 320), steps: int = 8) -> None:
    """The next pictures are copied and made ready on a second stream while a network learns."""
    import torchvision

    model = torchvision.models.resnet50().to(CUDA)
    optimizer = optimizer_of("sgd", model.parameters())
    copies = torch.cuda.Stream()

    def next_pictures() -> Any:
        with torch.cuda.stream(copies):
            high = number(side) // 32 * 32
            raw = torch.empty(number(rows), 3, high, high, dtype=torch.uint8).to(CUDA, non_blocking=True)
            return (raw.float() / 255 - 0.5) / 0.25

    pictures = next_pictures()
    for _ in range(steps):
        torch.cuda.current_stream().wait_stream(copies)
        now, pictures = pictures, next_pictures()
        now.record_stream(torch.cuda.current_stream())
        with torch.autocast("cuda", HALF):
            loss = model(now).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def side_by_side(streams: int = 4, rounds: int = 60, width: int = 1024, rows: Any = (256, 8192)) -> None:
    """Each stream runs a model of its own on batches of any size."""
    models = [
        nn.Sequential(*(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4))).to(CUDA)
        for _ in range(streams)
    ]
    own = [torch.cuda.Stream() for _ in models]
    results: deque[Any] = deque()
    for at in range(rounds):
        with torch.cuda.stream(own[at % streams]):
            results.append(models[at % streams](torch.randn(number(rows), width, device=CUDA)))
        if len(results) > 2 * streams:
            done = results.popleft()
            done.record_stream(torch.cuda.current_stream())
            done.sum()


def gathered(layers: int = 8, width: int = 2048, rows: Any = (4, 12), length: Any = (256, 1024), steps: int = 4) -> None:
    """Weights are gathered on a second stream shortly before their layer, as sharded training does."""
    shards = [torch.randn(12 * width * width // 8, device=CUDA, dtype=HALF, requires_grad=True) for _ in range(layers)]
    gather = torch.cuda.Stream()
    optimizer = torch.optim.AdamW(shards, lr=1e-4)

    def layer(x: Any, shard: Any) -> Any:
        with torch.cuda.stream(gather):
            whole = torch.cat([shard] * 8)
        torch.cuda.current_stream().wait_stream(gather)
        whole.record_stream(torch.cuda.current_stream())
        first, second = whole[: 8 * width * width].chunk(2)
        first, second = first.view(width, 4 * width), second.view(4 * width, width)
        return x + F.gelu(x @ first) @ second

    for _ in range(steps):
        x = torch.randn(number(rows), number(length), width, device=CUDA, dtype=HALF)
        for shard in shards:
            x = checkpoint(layer, x, shard, use_reentrant=False)
        x.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# Plain loops


def perceptron(rows: Any = 8192, width: int = 4096, layers: int = 6, **how: Any) -> None:
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))).to(CUDA)
    train(model, lambda model: model(torch.randn(number(rows), width, device=CUDA)).float().square().mean(), **how)


def recurrent(kind: str, rows: Any = 64, length: Any = (50, 400), width: int = 1024, layers: int = 2, **how: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20_000, width)
            self.inner = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](width, width, layers, batch_first=True)
            self.head = nn.Linear(width, 20_000)

        def forward(self, text: Any) -> Any:
            return self.head(self.inner(self.words(text))[0])

    def loss_of(model: Any) -> Any:
        text = words(number(rows), number(length), 20_000)
        return F.cross_entropy(model(text).flatten(0, 1), text.flatten())

    train(Net().to(CUDA), loss_of, **{"autocast": None, **how})


def stepwise(rows: int = 128, length: Any = (20, 120), width: int = 1024, steps: int = 4) -> None:
    """A cell that is called word by word, so that many blocks live until the backward."""
    cell, head = nn.LSTMCell(width, width).to(CUDA), nn.Linear(width, 1000).to(CUDA)
    optimizer = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=1e-4)
    for _ in range(steps):
        state, losses = None, []
        for _ in range(number(length)):
            state = cell(torch.randn(rows, width, device=CUDA), state)
            losses.append(head(state[0]).logsumexp(1).mean())
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recommend(rows: Any = (4096, 65536), tables: int = 16, steps: int = 6) -> None:
    """Large tables with sparse gradients, and a small network."""
    bags = nn.ModuleList(nn.EmbeddingBag(random.randint(50_000, 2_000_000), 64, sparse=True) for _ in range(tables)).to(CUDA)
    top = nn.Sequential(nn.Linear(64 * tables, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)).to(CUDA)
    optimizers = [torch.optim.SparseAdam(bags.parameters()), torch.optim.Adam(top.parameters())]
    for _ in range(steps):
        count = number(rows)
        parts = [bag(torch.randint(bag.num_embeddings, (count, 8), device=CUDA)) for bag in bags]
        top(torch.cat(parts, 1)).sigmoid().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def plays(actors: int = 512, length: int = 64, rounds: int = 3) -> None:
    """Proximal policies: what actors saw is kept, then learnt in small batches."""
    model = nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.Linear(512, 18)),
    ).to(CUDA)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(rounds):
        seen, kept = [], []
        with torch.no_grad():
            for _ in range(length):
                seen.append(torch.randint(255, (actors, 4, 84, 84), dtype=torch.uint8, device=CUDA))
                kept.append(model(seen[-1].float()).log_softmax(1))
        all_seen, all_kept = torch.cat(seen), torch.cat(kept)
        for part, known in zip(all_seen.chunk(8), all_kept.chunk(8)):
            ((model(part.float()).log_softmax(1) - known).exp().clamp(0.8, 1.2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def distances(points: Any = (20_000, 120_000), queries: int = 4096, rounds: int = 12) -> None:
    """Nearest neighbours by whole tables of distances, in parts."""
    for _ in range(rounds):
        known = torch.randn(number(points), 128, device=CUDA)
        for part in torch.randn(4 * queries, 128, device=CUDA).split(number((queries // 4, queries))):
            (part.square().sum(1, True) - 2 * part @ known.T + known.square().sum(1)).topk(16, largest=False)


@torch.no_grad()
def grows(rounds: int = 300, each: int = 3_000_000) -> None:
    """An array that gets longer by `cat` each time."""
    kept = torch.empty(0, device=CUDA)
    for _ in range(rounds):
        kept = torch.cat((kept, torch.randn(number((each // 4, each)), device=CUDA).square()))


@torch.no_grad()
def waves(rounds: int = 30, batch: Any = (8, 64), samples: Any = (100_000, 2_000_000)) -> None:
    """Sound of any length by elementwise steps and a convolution, with results that stay for a while."""
    kept: deque[Any] = deque(maxlen=6)
    filters = torch.randn(32, 1, 64, device=CUDA)
    for _ in range(rounds):
        sound = torch.randn(number(batch), 1, number(samples), device=CUDA)
        parts = F.conv1d(sound / sound.abs().amax(2, True), filters, stride=16)
        kept.append((parts.square() + 1e-6).log().mean(1))


def models_in_turn(steps: int = 2) -> None:
    """One model after the other is made, trained and dropped, as a search for a good one does."""
    for _ in range(6):
        width, layers = 256 * number((3, 12)), number((2, 6))
        model = nn.Sequential(*(Layer(width, width // 64) for _ in range(layers))).to(CUDA)

        def loss_of(model: Any, width: int = width) -> Any:
            return model(torch.randn(number((4, 16)), number((128, 1024)), width, device=CUDA)).float().square().mean()

        train(model, loss_of, steps)
        del model


def teacher(rows: Any = (16, 64), steps: int = 4) -> None:
    """A small network learns what a large one says."""
    import torchvision

    large, small = torchvision.models.resnet101().to(CUDA).eval(), torchvision.models.resnet18().to(CUDA)

    def loss_of(model: Any) -> Any:
        pictures = torch.randn(number(rows), 3, 224, 224, device=CUDA)
        with torch.no_grad():
            known = large(pictures).softmax(1)
        return F.kl_div(model(pictures).log_softmax(1), known, reduction="batchmean")

    train(small, loss_of, steps, "sgd", clip=False)


def rays(rows: Any = (4096, 16384), samples: int = 96, steps: int = 8) -> None:
    """A radiance field: many points, a small network."""
    inner = (part for _ in range(6) for part in (nn.ReLU(), nn.Linear(256, 256)))
    model = nn.Sequential(nn.Linear(63, 256), *inner, nn.ReLU(), nn.Linear(256, 4)).to(CUDA)

    def loss_of(model: Any) -> Any:
        points = torch.rand(number(rows), samples, 3, device=CUDA)
        coded = torch.cat([points, *(wave(2.0**level * points) for level in range(10) for wave in (torch.sin, torch.cos))], -1)
        out = model(coded)
        left = torch.cumprod(1 - out[..., 3].sigmoid(), 1)
        return (left[..., None] * out[..., :3].sigmoid()).sum(1).mean()

    train(model, loss_of, steps, autocast=None, clip=False)


# The jobs. Some are short, some long; some have one shape, most have many.

job("gpt2-fixed", texts, kind="gpt2", steps=6)
job("gpt2-any-length", texts, kind="gpt2", rows=(2, 12), length=(128, 1536), steps=12)
job("gpt2-wide-vocabulary", texts, kind="gpt2", vocabulary=151_936, rows=(2, 6), length=(200, 1000), steps=6)
job("gpt2-accumulates", texts, kind="gpt2", rows=4, length=(100, 1024), accumulate=4, steps=3)
job("gpt2-evaluates", texts, kind="gpt2", rows=6, length=(300, 900), evaluation=(24, 1024), steps=9)
job("gpt2-half-scaler", texts, kind="gpt2", rows=(3, 9), length=512, autocast=torch.float16, scaler=True, optimizer="loop")
job("llama-pure", texts, kind="llama", width=2048, layers=8, pure=True, rows=(1, 6), length=(256, 2048), steps=6)
job("llama-checkpoints", texts, kind="llama", width=2048, layers=8, pure=True, checkpoints=True, rows=(4, 12), length=(256, 2048), steps=5)
job("llama-lora", texts, kind="llama", width=3072, layers=8, lora=16, rows=(1, 6), length=(128, 1800), steps=8)
job("qwen-lora-checkpoints", texts, kind="qwen", width=3072, layers=8, lora=32, checkpoints=True, rows=(2, 8), length=(128, 1800), steps=6)
job("mistral-sgd", texts, kind="mistral", width=1536, optimizer="sgd", rows=(2, 8), length=(300, 1500), steps=5)
job("neox-fused", texts, kind="neox", optimizer="fused", rows=(2, 8), length=(300, 1500), steps=5)
job("bert-fixed", texts, kind="bert", width=768, heads=12, layers=8, rows=32, length=256, steps=8)
job("bert-any-length", texts, kind="bert", rows=(8, 40), length=(32, 512), steps=14)
job("deberta", texts, kind="deberta", width=768, heads=12, rows=(4, 16), length=(64, 400), steps=4)
job("t5-any-length", texts, kind="t5", rows=(4, 16), length=(64, 600), steps=8)
job("bart-evaluates", texts, kind="bart", rows=(4, 12), length=(64, 800), evaluation=(32, 600), steps=6)
job("long-context", texts, kind="llama", width=2048, layers=4, pure=True, rows=1, length=(4000, 24_000), steps=5)
job("trainer-gpt2", trainer, kind="gpt2", rows=8)
job("trainer-accumulates", trainer, kind="llama", rows=4, steps=4, gradient_accumulation_steps=4)
job("trainer-evaluates", trainer, kind="qwen", rows=6, steps=6, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=16)
job("trainer-adafactor", trainer, kind="bert", rows=16, longest=512, steps=6, optim="adafactor", gradient_checkpointing=True)
job("preference", preference)
job("clip", pictures_and_texts)
job("clip-any-batch", pictures_and_texts, rows=(16, 128), steps=8)
job("speech", speech, steps=6)
job("whisper", whisper, steps=5)
job("answers-large", answers)
job("answers-shared-heads", answers, shared=4, rows=(8, 48), rounds=3)
job("answers-short", answers, rows=4, question=(10, 100), answer=(10, 20), rounds=2, layers=16)
job("served", served, rounds=40, layers=6)
job("served-many", served, at_once=24, rounds=40, layers=3, shared=2)
job("generate-llama", generated, kind="llama", rows=16)
job("generate-beams", generated, kind="gpt2", rows=4, beams=4, answer=40)
job("paged", paged)
job("resnet50-fixed", classify, name="resnet50", rows=64, steps=6)
job("resnet50-any-size", classify, name="resnet50", rows=(16, 64), side=(128, 448), steps=12)
job("resnet152-last", classify, name="resnet152", rows=(16, 48), last=True, steps=4)
job("densenet", classify, name="densenet121", rows=(16, 48), side=(160, 320), steps=4)
job("vgg-evaluates", classify, name="vgg16", rows=(16, 40), evaluated=True, every=2, steps=6)
job("mobilenet-long", classify, name="mobilenet_v3_large", rows=(32, 256), side=(128, 320), steps=24)
job("regnet-float", classify, name="regnet_y_3_2gf", rows=(16, 64), autocast=None, steps=5)
job("torchvision-vit", classify, name="vit_b_16", rows=(16, 96), optimizer="adamw", clip=True, steps=5)
job("torchvision-swin", classify, name="swin_t", rows=(16, 96), optimizer="adamw", clip=True, steps=4)
job("timm-convnext", classify, name="convnext_small", source="timm", rows=(16, 64), optimizer="adamw", average=True, steps=4)
half = {"autocast": torch.float16, "scaler": True}
job("timm-vit", classify, name="vit_small_patch16_224", source="timm", rows=128, optimizer="adamw", **half, clip=True, steps=6)
job("timm-efficientnet", classify, name="efficientnet_b3", source="timm", rows=(16, 64), side=(224, 384), optimizer="rmsprop", steps=4)
job("timm-maxvit", classify, name="maxvit_tiny_tf_224", source="timm", rows=(16, 48), optimizer="adamw", steps=3)
job("timm-mixer", classify, name="mixer_b16_224", source="timm", rows=(32, 128), optimizer="adamw", accumulate=3, steps=3)
job("deeplab", segment, name="deeplabv3_resnet50", side=(320, 640), steps=4)
job("fcn", segment, name="fcn_resnet50", rows=6, side=(256, 768), steps=6)
job("mask-rcnn", detect, name="maskrcnn_resnet50_fpn", steps=4)
job("faster-rcnn", detect, name="fasterrcnn_resnet50_fpn", rows=6, steps=5)
job("retinanet", detect, name="retinanet_resnet50_fpn", steps=5)
job("fcos", detect, name="fcos_resnet50_fpn", rows=3, steps=6)
job("video", video, frames=(8, 32), steps=6)
job("denoise", denoise, steps=6)
job("denoise-average", denoise, widths=(192, 384, 768), rows=(4, 16), average=True, accumulate=2, steps=4)
job("diffuse", diffuse)
job("diffuse-large", diffuse, widths=(320, 640), rows=1, side=(64, 192), pictures=6, steps=12)
job("adversaries", adversaries, rows=(32, 160))
job("gat", graphs, kind="gat", nodes=(20_000, 120_000), steps=8)
job("gcn", graphs, kind="gcn", nodes=(50_000, 300_000), steps=8)
job("sage-long", graphs, kind="sage", nodes=(5_000, 80_000), degree=20, steps=40)
job("gin", graphs, kind="gin", nodes=(20_000, 200_000), width=512, steps=6)
job("graph-transformer", graphs, kind="transformer", nodes=(10_000, 60_000), layers=4, steps=5)
job("experts", experts, steps=5)
job("experts-many", experts, count=32, width=768, layers=3, steps=4)
job("experts-large", experts, count=4, width=2048, layers=3, rows=(2, 8), steps=5)
job("ahead", ahead)
job("side-by-side", side_by_side)
job("side-by-side-long", side_by_side, streams=3, rounds=400, rows=(64, 20_000))
job("gathered", gathered)
job("perceptron", perceptron, steps=8)
job("perceptron-long", perceptron, rows=(1000, 20_000), width=2048, steps=60)
job("lstm", recurrent, kind="lstm", steps=6)
job("gru-long", recurrent, kind="gru", rows=(16, 128), steps=30)
job("stepwise", stepwise)
job("recommend", recommend)
job("plays", plays)
job("distances", distances)
job("grows", grows)
job("waves", waves)
job("models-in-turn", models_in_turn)
job("teacher", teacher)
job("rays", rays)


def main() -> None:
    if len(sys.argv) < 2:
        print(*JOBS, sep="\n")
        return
    name = sys.argv[1]
    random.seed(name)
    JOBS[name]()


if __name__ == "__main__":
    main()
