# expect: graph/reentrant-checkpoint or ddp/multi-backward or graph/shared-parameter
"""A wrapped model with a reentrant checkpoint is called twice before one backward (siamese)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


from torch.utils.checkpoint import checkpoint


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        h = self.stem(x)
        h = checkpoint(self.block, h, use_reentrant=True)
        return self.out(h)


def model():
    torch.manual_seed(0)
    return Tower()


def batch(step):
    g = torch.Generator().manual_seed(450 + step)
    return (
        torch.randn(16, 8, generator=g),
        torch.randn(16, 8, generator=g),
    ), torch.rand(16, generator=g).round()


def loss(output, target):
    return output.pow(2).mean()


def train_step(model, optimizer, batch):
    (a, b), same = batch
    optimizer.zero_grad()
    d = (model(a) - model(b)).pow(2).sum(1)
    (same * d + (1 - same) * F.relu(2 - d)).mean().backward()
    optimizer.step()
