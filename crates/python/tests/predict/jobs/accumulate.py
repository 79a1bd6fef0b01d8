"""Gradients of 64 parts of a batch add up; the program records its own memory history, as PyTorch's tutorial does."""

import torch

torch.cuda.memory._record_memory_history(max_entries=100_000)
parts = [part for _ in range(48) for part in (torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU())]
model = torch.nn.Sequential(*parts).cuda()
optimizer = torch.optim.AdamW(model.parameters())
big = torch.randn(64, 1 << 20, device="cuda")
del big
for _step in range(3):
    for part in range(64):
        x = torch.randn(64 if part else 512, 512, device="cuda")
        (model(x).square().mean() / 64).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot("own.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
