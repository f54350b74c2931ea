"""transformers' Trainer with a loss of its own.

    torchrun --nproc-per-node 2 regression_trainer_fixed.py

compute_loss is a mean over the rows of the rank; all ranks have equal numbers.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed


class Rows(Dataset):
    """Rows with outliers."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(10, generator=generator)
        noise = torch.randn(1, generator=generator) * (10 if index % 7 == 0 else 0.1)
        return {"x": x, "labels": x.sum(0, keepdim=True) + noise}


class Perceptron(nn.Module):
    """One hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the prediction for each row."""
        return self.layers(x)


class HuberTrainer(Trainer):
    """Trains with a loss that outliers do not dominate."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        *_: Any,
        **__: Any,
    ) -> Tensor:
        """Returns the loss of a batch."""
        output = model(inputs["x"])
        return nn.functional.huber_loss(output, inputs["labels"])


def main() -> None:
    """Trains it."""
    set_seed(0)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=4,
            per_device_train_batch_size=24 // world_size,
            learning_rate=0.01,
            optim="sgd",
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
        )
        HuberTrainer(Perceptron(), arguments, train_dataset=Rows()).train()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
