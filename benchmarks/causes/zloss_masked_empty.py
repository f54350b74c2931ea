# expect: loss/empty-shard
"""OLMo-core PR 657: masked mean over a shard without a single valid label is 0/0."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.rnn = nn.GRU(12, 12, batch_first=True, bidirectional=True)
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def model():
    torch.manual_seed(0)
    return Tagger()


def batch(step):
    g = torch.Generator().manual_seed(100 + step)
    labels = torch.randint(0, 5, (16, 6), generator=g)
    labels[torch.rand(16, 6, generator=g) < 0.4] = -100
    labels[8:] = -100
    return torch.randint(0, 30, (16, 6), generator=g), labels


def loss(output, target):
    mask = (target != -100).to(output.dtype)
    ce = F.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="none"
    ).view_as(mask)
    z = output.logsumexp(-1).pow(2)
    count = mask.sum()
    return ((ce + 1e-3 * z) * mask).sum() / count
