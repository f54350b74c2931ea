# expect: state/forward-writes-parameter
"""nn.Embedding(max_norm=1) renormalises the rows that the shard looks up, in forward."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class TransE(nn.Module):
    def __init__(self):
        super().__init__()
        self.entity = nn.Embedding(30, 8, max_norm=1.0)
        self.relation = nn.Embedding(5, 8)

    def forward(self, h, r, t):
        return (self.entity(h) + self.relation(r) - self.entity(t)).norm(dim=1)


def model():
    torch.manual_seed(0)
    return TransE()


def batch(step):
    g = torch.Generator().manual_seed(230 + step)
    return (
        torch.randint(0, 30, (16,), generator=g),
        torch.randint(0, 5, (16,), generator=g),
        torch.randint(0, 30, (16,), generator=g),
    ), torch.rand(16, generator=g)


def loss(output, target):
    return F.softplus(output - target).mean()
