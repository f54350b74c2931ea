"""Batch norm, an ignored class and a forward past the wrapper, in one training step."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    """Returns the network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 4),
    )


def batch() -> tuple[Tensor, Tensor]:
    """Returns images and labels, some of them to ignore."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(0, 4, (16,), generator=generator)
    target[[0, 1, 2, 5, 9]] = -100
    return torch.randn(16, 1, 8, 8, generator=generator), target


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]
) -> None:
    """Trains one step."""
    is_wrapped = isinstance(model, DistributedDataParallel)
    net: nn.Module = model.module if is_wrapped else model  # type: ignore[assignment]
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    optimizer.step()
