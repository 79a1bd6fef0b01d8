"""Several ranks with equal weights: DistributedDataParallel, and a loss that all of them sum."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2048)
args = parser.parse_args()

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.LayerNorm(2048), nn.GELU())]
model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(args.batch_size, 2048, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(step, mean.item())
dist.destroy_process_group()
