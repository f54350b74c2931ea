"""Contrastive learning of pairs with Lightning.

    torchrun --nproc-per-node 2 pairs_lightning_fixed.py

all_gather gives the outputs of all ranks with their gradient: sync_grads=True.
"""

from __future__ import annotations

import os

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset


class Pairs(lightning.LightningModule):
    """Two encoders whose outputs for a pair are to be alike."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 8))
        self.right = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 8))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer of both."""
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Returns the loss: which of all belongs to each."""
        left = normalize(self.left(batch[0]), dim=1)
        right = normalize(self.right(batch[1]), dim=1)
        lefts, rights = left, right
        if self.trainer.world_size > 1:
            lefts = self.all_gather(left, sync_grads=True).flatten(0, 1)
            rights = self.all_gather(right, sync_grads=True).flatten(0, 1)
        first = self.global_rank * len(left)
        labels = torch.arange(first, first + len(left))
        losses = [
            cross_entropy(10 * left @ rights.T, labels),
            cross_entropy(10 * right @ lefts.T, labels),
        ]
        return sum(losses) / 2


def main() -> None:
    """Trains them."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    lightning.seed_everything(0, verbose=False)
    x = torch.randn(96, 12)
    data = TensorDataset(x, x[:, :10].tanh())
    loader = DataLoader(data, batch_size=24 // world_size)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Pairs(), loader)


if __name__ == "__main__":
    main()
