# expect: loss/embedding-frequency
"""Embedding(scale_grad_by_freq=True) divides by the counts of the shard."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Rec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(9, 6, padding_idx=0, scale_grad_by_freq=True)
        self.user = nn.Linear(4, 6)

    def forward(self, items, user):
        return (self.item(items).mean(1) * self.user(user)).sum(1)


def model():
    torch.manual_seed(0)
    return Rec()


def batch(step):
    g = torch.Generator().manual_seed(120 + step)
    return (
        torch.randint(0, 9, (16, 5), generator=g),
        torch.randn(16, 4, generator=g),
    ), torch.rand(16, generator=g)


def loss(output, target):
    return F.binary_cross_entropy_with_logits(output, target)
