"""A denoising U-Net with group norms and attention, in bfloat16 autocast, with an average of its weights."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(512, outside)
        self.short = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.short(x)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(32, width), nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, rows, columns = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, 3, 4, width // 4, rows * columns).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(x.shape)
        return x + self.out(y)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [128, 256, 256]
        self.time = nn.Sequential(nn.Linear(128, 512), nn.SiLU(), nn.Linear(512, 512))
        self.first = nn.Conv2d(3, 128, 3, padding=1)
        self.down, self.shrink, width = nn.ModuleList(), nn.ModuleList(), 128
        for outside in widths:
            self.down.append(Residual(width, outside))
            self.shrink.append(nn.Conv2d(outside, outside, 3, 2, 1))
            width = outside
        self.middle, self.attention = Residual(width, width), Attention(width)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for outside in reversed(widths):
            self.grow.append(nn.ConvTranspose2d(width, outside, 2, 2))
            self.up.append(Residual(2 * outside, outside))
            width = outside
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(torch.linspace(0, -8, 64, device=x.device))
        angles = steps[:, None] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, kept = self.first(x), []
        for residual, shrink in zip(self.down, self.shrink):
            x = residual(x, time)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for grow, residual in zip(self.grow, self.up):
            x = residual(torch.cat([grow(x), kept.pop()], dim=1), time)
        return self.last(x)


model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
for step in range(5):
    images = torch.randn(args.batch_size, 3, 64, 64, device="cuda")
    noise, steps = torch.randn_like(images), torch.rand(args.batch_size, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        guessed = model(images * (1 - steps)[:, None, None, None] + noise * steps[:, None, None, None], steps * 1000)
        loss = F.mse_loss(guessed.float(), noise)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters()):
            mean.lerp_(parameter, 0.001)
    print(step, loss.item())
