"""An LSTM of two layers on sequences, with SGD."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(20000, 256), nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1024, 40)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(words))
        return self.head(states)


model = Tagger().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    words, tags = torch.randint(0, 20000, (args.batch_size, 200)).cuda(), torch.randint(0, 40, (args.batch_size, 200)).cuda()
    loss = F.cross_entropy(model(words).flatten(0, 1), tags.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
