"""Adapters of a frozen model in bfloat16, on texts of several lengths, with gradients that are accumulated."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
WIDTH, HEADS, LAYERS, WORDS, RANK = 2048, 16, 12, 32000, 16


class Adapted(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside, bias=False, dtype=torch.bfloat16)
        self.base.weight.requires_grad_(False)
        self.down, self.up = nn.Linear(inside, RANK, bias=False), nn.Linear(RANK, outside, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(F.dropout(x.float(), 0.05))).to(x.dtype)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.q, self.k, self.v, self.o = (Adapted(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        for frozen in (self.gate, self.up, self.down):
            frozen.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False, dtype=torch.bfloat16)
        self.embed.weight.requires_grad_(False)
        self.head.weight.requires_grad_(False)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


model = Model().cuda()
adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=2e-4)
lengths = [512, 384, 640, 448, 576, 512, 320, 640]
for step in range(4):
    for micro in range(2):
        length = lengths[(2 * step + micro) % len(lengths)]
        words = torch.randint(0, WORDS, (args.batch_size, length)).cuda()
        seen = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()[None, None]
        logits = model(words, seen)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, WORDS).float(), words[:, 1:].reshape(-1)) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
