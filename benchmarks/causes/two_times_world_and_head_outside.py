# expect: loss/double-world-scale, ddp/wrapper-missing
"""Loss times W, and the head is not in the wrapped module."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 12)
        )
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def model():
    torch.manual_seed(0)
    return Net()


def wrap(model):
    model.backbone = DDP(model.backbone)
    return model


def batch(step):
    g = torch.Generator().manual_seed(620 + step)
    return torch.randn(16, 1, 8, 8, generator=g), torch.randint(
        0, 4, (16,), generator=g
    )


def loss(output, target):
    value = F.cross_entropy(output, target)
    return value * world()
