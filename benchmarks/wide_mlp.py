"""The small target with a batch of 4,096: one sample for each of as many ranks."""

from __future__ import annotations

import torch
from mlp import loss, model
from torch import Tensor

__all__ = ["batch", "loss", "model"]

BATCH_SIZE = 4096


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns random inputs (4096, 32) and targets (4096, 1)."""
    noise = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH_SIZE, 32, generator=noise)
    return x, x[:, :1] ** 2
