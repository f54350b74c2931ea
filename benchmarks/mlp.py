"""The small target of the benchmarks: a multi-layer perceptron, regression."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BATCH_SIZE = 64


def model() -> nn.Module:
    """Returns three linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns random inputs (64, 32) and targets (64, 1)."""
    noise = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH_SIZE, 32, generator=noise)
    return x, x[:, :1] ** 2


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean squared error."""
    return nn.functional.mse_loss(output, target)
