# expect: loss/batch-coupled
"""Pairwise ranking (BPR/AUC surrogate): each positive against every negative of the batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class DeepFM(nn.Module):
    def __init__(self, fields=5, vocab=11, width=6):
        super().__init__()
        self.linear = nn.Embedding(fields * vocab, 1)
        self.embed = nn.Embedding(fields * vocab, width)
        self.mlp = nn.Sequential(
            nn.Linear(fields * width, 16), nn.ReLU(), nn.Linear(16, 1)
        )
        self.register_buffer("offset", torch.arange(fields) * vocab)

    def forward(self, x):
        x = x + self.offset
        e = self.embed(x)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        return self.linear(x).sum((1, 2)) + fm + self.mlp(e.flatten(1))[:, 0]


def model():
    torch.manual_seed(0)
    return DeepFM()


def batch(step):
    g = torch.Generator().manual_seed(70 + step)
    return torch.randint(0, 11, (16, 5), generator=g), torch.arange(16) % 2


def loss(output, target):
    positive, negative = output[target == 1], output[target == 0]
    return F.softplus(negative[None, :] - positive[:, None]).mean()
