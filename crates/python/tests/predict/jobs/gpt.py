"""GPT-2 small in bfloat16 autocast with AdamW; with checkpoints of its blocks if that is asked for."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--fused", action="store_true")
args = parser.parse_args()
WIDTH, HEADS, LAYERS, WORDS = 768, 12, 12, 50257


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(args.length, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS))

    def forward(self, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, WORDS), targets.reshape(-1))


model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=args.fused or None)
for step in range(5):
    words = torch.randint(0, WORDS, (args.batch_size, args.length + 1), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(words[:, :-1], words[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step}: {loss.item():.3f}")
