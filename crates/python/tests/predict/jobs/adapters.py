"""PEFT's adapters of a Qwen of random weights in bfloat16, with accelerate's loop, its accumulation and clipping."""

import argparse

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import Qwen2Config, Qwen2ForCausalLM, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()

config = Qwen2Config(
    hidden_size=1536, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=2, vocab_size=64000
)
model = Qwen2ForCausalLM(config).to(torch.bfloat16)
model.gradient_checkpointing_enable({"use_reentrant": False})
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], lora_dropout=0.05))
accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)
loader = DataLoader(TensorDataset(torch.randint(0, 64000, (args.batch_size * 10, 768))), args.batch_size)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for step, (words,) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        accelerator.print(step, loss.item())
