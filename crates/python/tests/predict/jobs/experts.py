"""A mixture of experts: each word goes to two of eight, by the values of a router."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(768, 8, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(768, 2048), nn.GELU(), nn.Linear(2048, 768)) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = F.softmax(self.router(flat), dim=-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            word, place = torch.where(chosen == number)
            out = out.index_add(0, word, weights[word, place, None] * expert(flat[word]))
        return out.view_as(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16000, 768)
        self.layers = nn.ModuleList(Experts() for _ in range(6))
        self.head = nn.Linear(768, 16000)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (768,)))
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(5):
    words = torch.randint(0, 16000, (args.batch_size, 512), device="cuda")
    loss = F.cross_entropy(model(words).flatten(0, 1), words.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
