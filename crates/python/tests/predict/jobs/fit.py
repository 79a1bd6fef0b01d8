"""Lightning's loop with a vision transformer in bfloat16, and a validation after some steps."""

import argparse
import logging

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()
logging.getLogger("lightning").setLevel(logging.ERROR)


class Vision(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.place = nn.Parameter(torch.zeros(196, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        words = self.patches(images).flatten(2).transpose(1, 2) + self.place
        return self.head(self.layers(words).mean(1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("val", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def pictures() -> "DataLoader[tuple[torch.Tensor, ...]]":
    images, labels = torch.randn(args.batch_size * 5, 3, 224, 224), torch.randint(0, 1000, (args.batch_size * 5,))
    return DataLoader(TensorDataset(images, labels), args.batch_size)


trainer = lightning.Trainer(
    max_steps=5,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    num_sanity_val_steps=1,
    devices=1,
)
trainer.fit(Vision(), pictures(), pictures())
