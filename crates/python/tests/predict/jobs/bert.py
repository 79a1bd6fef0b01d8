"""A BERT of random weights that learns to sort texts, a quarter of each padding. Attention needs a mask for that."""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--length", type=int, default=256)
args = parser.parse_args()

torch.manual_seed(0)
config = BertConfig(vocab_size=28996, num_labels=2, attn_implementation="sdpa")
model = BertForSequenceClassification(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
words = torch.randint(0, 28996, (args.batch_size, args.length), device="cuda")
mask = torch.ones(args.batch_size, args.length, dtype=torch.long, device="cuda")
mask[:, args.length * 3 // 4 :] = 0
labels = torch.randint(0, 2, (args.batch_size,), device="cuda")
for step in range(3):
    model(input_ids=words, attention_mask=mask, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
