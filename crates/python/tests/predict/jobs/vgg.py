"""Plain convolutions in float32, with the channels first and Adagrad."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

layers: list[nn.Module] = []
inside = 3
for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
    if width:
        layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
        inside = width
    else:
        layers.append(nn.MaxPool2d(2))
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 49, 1024), nn.ReLU(), nn.Dropout(), nn.Linear(1024, 1000)).cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)
for step in range(5):
    images = torch.randn(args.batch_size, 3, 224, 224, device="cuda")
    loss = F.cross_entropy(model(images), torch.randint(0, 1000, (args.batch_size,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
