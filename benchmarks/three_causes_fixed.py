"""three_causes.py, sound: instance norm, a global count, the wrapped model called."""

import torch
import torch.distributed as dist
from three_causes import batch
from torch import Tensor, nn

__all__ = ["batch", "model", "train_step"]
IGNORED = -100


def model() -> nn.Module:
    """Returns the network."""
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(8, affine=True)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    )


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]
) -> None:
    """Trains one step."""
    count, world_size = (batch[1] != IGNORED).sum(), 1
    if dist.is_initialized():
        dist.all_reduce(count)
        world_size = dist.get_world_size()
    optimizer.zero_grad()
    total = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    (world_size * total / count).backward()
    optimizer.step()
