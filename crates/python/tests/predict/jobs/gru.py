"""A GRU of three layers that predicts the next value of many series, in float32 with Adam."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
args = parser.parse_args()


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(64, 768, 3, batch_first=True, dropout=0.1)
        self.head = nn.Linear(768, 64)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(series)[0])


model = Forecast().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    series = torch.randn(args.batch_size, 129, 64, device="cuda")
    loss = F.mse_loss(model(series[:, :-1]), series[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
