"""A perceptron on handwritten digits, for a parameter server, with a summed loss.

`ddpcheck examples/digits_server.py --modes ps`: the server takes the mean of the
workers' gradients, and a sum needs their sum. The learning rate was chosen for the sum.
"""

from __future__ import annotations

import torch
from digits_conv import batch
from torch import Tensor, nn

__all__ = ["batch", "loss", "model", "optimizer"]


def model() -> nn.Module:
    """Returns the perceptron: 64 pixels in, 10 scores out."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the cross entropy, summed over samples."""
    return nn.functional.cross_entropy(output, target, reduction="sum")


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns SGD with momentum."""
    return torch.optim.SGD(params, lr=0.001, momentum=0.9)
