"""A network that mixes words by Fourier transforms, and learns from spectrograms."""

import torch
from torch import nn

BATCH, SAMPLES, WIDTH = 64, 65536, 512


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.fft.fft2(x.float()).real
        return x + self.mlp(self.norm(x))


model = nn.Sequential(nn.Linear(257, WIDTH), *[Mixer() for _ in range(6)], nn.Linear(WIDTH, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
window = torch.hann_window(512, device="cuda")
for _step in range(3):
    sound = torch.randn(BATCH, SAMPLES, device="cuda")
    spectrum = torch.stft(sound, 512, 256, window=window, return_complex=True).abs().transpose(1, 2)
    model(spectrum).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
