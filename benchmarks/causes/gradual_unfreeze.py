# expect: ddp/unfrozen-after-wrap
"""detectron2#2486 / gradual unfreezing: the backbone is frozen when DDP wraps it and unfrozen by the trainer at step 1."""

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
            nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU()
        )
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def model():
    torch.manual_seed(0)
    net = Net()
    net.backbone.requires_grad_(False)
    return net


def batch(step):
    g = torch.Generator().manual_seed(330 + step)
    return (torch.randn(16, 8, generator=g), torch.full((16,), step)), torch.randint(
        0, 3, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output, target)


def train_step(model, optimizer, batch):
    (x, step), target = batch
    net = model.module if isinstance(model, DDP) else model
    if int(step[0]) >= 1:
        net.backbone.requires_grad_(True)
    optimizer.zero_grad()
    loss(model(x), target).backward()
    optimizer.step()
