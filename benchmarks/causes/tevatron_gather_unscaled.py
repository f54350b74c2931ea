# expect: collective/no-autograd
"""tevatron#30: bi-encoder gathers queries and passages with raw all_gather, own slot put back, mean cross entropy over all, loss not scaled by the world size."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class BiEncoder(nn.Module):
    def __init__(self, vocab=40, width=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.query = nn.Linear(width, width)
        self.passage = nn.Linear(width, width)

    def forward(self, query, passage):
        return self.query(self.embed(query).mean(1)), self.passage(
            self.embed(passage).mean(1)
        )


def model():
    torch.manual_seed(0)
    return BiEncoder()


def batch(step):
    g = torch.Generator().manual_seed(60 + step)
    return (
        torch.randint(0, 40, (16, 4), generator=g),
        torch.randint(0, 40, (16, 9), generator=g),
    ), torch.arange(16)


def gather(t):
    if not dist.is_initialized():
        return t
    parts = [torch.empty_like(t) for _ in range(world())]
    dist.all_gather(parts, t.contiguous())
    parts[rank()] = t
    return torch.cat(parts, dim=0)


def loss(output, target):
    q, p = map(gather, output)
    scores = q @ p.t()
    value = F.cross_entropy(scores, torch.arange(len(scores)))
    return value
