"""PyTorch with millpond as its allocator: `python examples/python/pytorch_training.py`. Needs a GPU."""

import millpond

millpond.torch.enable()  # before the first use of CUDA

import torch  # noqa: E402

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(50):
    batch = torch.randn(256 + 64 * (step % 5), 1024, device="cuda")
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}; PyTorch counts {torch.cuda.max_memory_allocated() >> 20} MiB allocated at most")
print(millpond.memory_summary())
