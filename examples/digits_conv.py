"""A small convolutional network with batch norm, on handwritten digits.

The data are the first 512 images of the test set of "Optical Recognition of
Handwritten Digits" (UCI, 8 x 8 pixels of 0 to 16), in `data/digits.npz`. Needs
nothing but torch and numpy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

BATCH_SIZE = 64
DATA = Path(__file__).parent / "data" / "digits.npz"


def model() -> nn.Module:
    """Returns the network: two convolutions with batch norm, one linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1, stride=2, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, 10),
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns images (64, 1, 8, 8) between 0 and 1, and their digits (64,)."""
    with np.load(DATA) as data:
        images, digits = data["images"], data["labels"]
    rows = np.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE) % len(images)
    x = torch.from_numpy(images[rows]).float() / 16
    return x.unsqueeze(1), torch.from_numpy(digits[rows]).long()


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean cross entropy."""
    return nn.functional.cross_entropy(output, target)


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns SGD with momentum."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4)
