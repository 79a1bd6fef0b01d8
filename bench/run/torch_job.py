"""A small transformer over sequences of changing length: the losses, the time, and what PyTorch says that it reserved."""

import hashlib
import os
import time

import torch

WARM, STEPS, WIDTH, HEADS = 10, 60, 768, 8


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attention(self.norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.out((scores @ value).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))


torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*[Block() for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
random = torch.Generator().manual_seed(2)
losses, begin = [], 0.0
for step, length in enumerate(torch.randint(64, 768, (STEPS,), generator=random).tolist()):
    if step == WARM:
        torch.cuda.synchronize()
        begin = time.perf_counter()
    x = torch.randn(8, length, WIDTH, generator=random).cuda()
    loss = (model(x) - x.roll(1, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
torch.cuda.synchronize()
took = time.perf_counter() - begin
digest = hashlib.sha1(repr(losses).encode()).hexdigest()[:10]
mib = [size() / 2**20 for size in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved)]
print(
    f"torch {os.environ.get('PYTORCH_CUDA_ALLOC_CONF', 'native')}: losses {digest}, {took:.2f} s, "
    f"allocated {mib[0]:.0f} MiB, reserved {mib[1]:.0f} MiB, {torch.cuda.get_allocator_backend()}"
)
