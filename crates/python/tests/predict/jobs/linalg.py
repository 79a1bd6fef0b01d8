"""An optimizer that turns gradients by the eigenvectors of their products, and weights that begin orthogonal."""

import torch
from torch import nn

WIDTH = 1536
model = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]).cuda()
for part in model:
    if isinstance(part, nn.Linear):
        nn.init.orthogonal_(part.weight)
optimizer = torch.optim.Adam(model.parameters())
for _step in range(3):
    loss = model(torch.randn(2048, WIDTH, device="cuda")).square().mean()
    poses = torch.linalg.inv(torch.eye(4, device="cuda").repeat(64, 1, 1))
    (loss + poses.mean()).backward()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            product = parameter.grad @ parameter.grad.T + torch.eye(WIDTH, device="cuda")
            parameter.grad = torch.linalg.eigh(product)[1] @ torch.linalg.solve(product, parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
