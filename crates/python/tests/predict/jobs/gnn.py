"""Message passing on a random graph: gathers, and sums by index."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=100_000, help="nodes")
args = parser.parse_args()


class Convolution(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.own, self.message = nn.Linear(inside, outside), nn.Linear(2 * inside, outside)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        messages = F.relu(self.message(torch.cat([x[source], x[target]], dim=1)))
        sums = torch.zeros(x.shape[0], messages.shape[1], device=x.device).index_add_(0, target, messages)
        counts = torch.zeros(x.shape[0], 1, device=x.device).scatter_add_(
            0, target[:, None], torch.ones(target.shape[0], 1, device=x.device)
        )
        return F.relu(self.own(x) + sums / counts.clamp(min=1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Convolution(64, 128), Convolution(128, 128), Convolution(128, 128)])
        self.head = nn.Linear(128, 16)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


device = "cuda"
model = Net().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
nodes = args.batch_size
for step in range(5):
    x = torch.randn(nodes, 64, device=device)
    edges = torch.randint(0, nodes, (2, 8 * nodes), device=device)
    labels = torch.randint(0, 16, (nodes,), device=device)
    loss = F.cross_entropy(model(x, edges), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
