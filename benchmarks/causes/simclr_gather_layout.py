# expect: collective/layout
"""Two views gathered rank by rank as [a0 b0 a1 b1], positives expected N apart."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class SimCLR(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)
        )

    def forward(self, a, b):
        return F.normalize(self.net(a), dim=1), F.normalize(self.net(b), dim=1)


def model():
    torch.manual_seed(0)
    return SimCLR()


def batch(step):
    g = torch.Generator().manual_seed(130 + step)
    x = torch.randn(16, 10, generator=g)
    return (
        x + 0.3 * torch.randn(16, 10, generator=g),
        x + 0.3 * torch.randn(16, 10, generator=g),
    ), torch.zeros(16)


def gather(z):
    return torch.cat(dnn.all_gather(z), 0) if dist.is_initialized() else z


def loss(output, target, t=0.5):
    a, b = output
    z = gather(torch.cat([a, b]))
    n = len(z)
    sim = z @ z.t() / t
    sim = sim.masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
    return F.cross_entropy(sim, torch.arange(n).roll(n // 2))
