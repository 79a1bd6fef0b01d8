"""Transformers' Trainer with a Llama of random weights, checkpoints of its layers, and a fused optimizer."""

import argparse
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000
)
model = LlamaForCausalLM(config)


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(0, 32000, (512,))
        return {"input_ids": words, "labels": words}


settings = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=args.batch_size,
    max_steps=5,
    logging_steps=1,
    bf16=True,
    gradient_checkpointing=args.checkpoint,
    report_to=[],
    save_strategy="no",
)
Trainer(model, settings, train_dataset=Texts()).train()
