"""Text from a language model in float16, word by word, with keys and values that grow."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--words", type=int, default=64)
args = parser.parse_args()
WIDTH, HEADS, LAYERS, WORDS = 2048, 16, 16, 32000


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):  # type: ignore[no-untyped-def]
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)))), (k, v)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words, caches):  # type: ignore[no-untyped-def]
        x, new = self.embed(words), []
        for layer, cache in zip(self.layers, caches):
            x, cache = layer(x, cache)
            new.append(cache)
        return self.head(x[:, -1]), new


model = Model().half().cuda().eval()
with torch.inference_mode():
    for question in range(2):
        words = torch.randint(0, WORDS, (args.batch_size, 384 + 128 * question), device="cuda")
        caches, answer = [None] * LAYERS, []
        for _ in range(args.words):
            logits, caches = model(words, caches)
            words = torch.multinomial(F.softmax(logits.float() / 0.8, dim=-1), 1)
            answer.append(words)
        print(question, torch.cat(answer, dim=1).shape)
