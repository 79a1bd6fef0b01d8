"""TorchVision's ResNet-50 in float32, with the channels first and momentum."""

import argparse

import torch
import torch.nn.functional as F
from torchvision.models import resnet50

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

model = resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for step in range(5):
    images = torch.randn(args.batch_size, 3, 224, 224, device="cuda")
    loss = F.cross_entropy(model(images), torch.randint(0, 1000, (args.batch_size,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
