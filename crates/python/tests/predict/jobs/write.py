"""Text that Transformers generates, with its cache of keys and values."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

model = GPT2LMHeadModel(GPT2Config(eos_token_id=50256, pad_token_id=50256)).to("cuda", torch.bfloat16).eval()
words = torch.randint(0, 50000, (args.batch_size, 128), device="cuda")
text = model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=96, min_new_tokens=96, do_sample=True, top_k=50)
print(text.shape)
