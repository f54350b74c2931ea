import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn import functional as F


class BarlowTwins(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 6))

    def forward(self, views):
        z = F.layer_norm(self.encoder(views), (6,))
        return z[:, 0], z[:, 1]


def model():
    torch.manual_seed(100)
    return BarlowTwins()


def batch():
    g = torch.Generator().manual_seed(101)
    x = torch.randn(16, 12, generator=g)
    jitter = lambda: torch.randn(16, 12, generator=g) * 0.2
    return torch.stack([x + jitter(), x + jitter()], 1), torch.zeros(16)


def loss(output, _):
    za, zb = output
    c = za.t() @ zb / len(za)
    if dist.is_initialized():
        c = c / dist.get_world_size()
        c = torch.distributed.nn.all_reduce(c)
    on_diag = (torch.diagonal(c) - 1).pow(2).sum()
    off_diag = c.pow(2).sum() - torch.diagonal(c).pow(2).sum()
    return on_diag + 0.05 * off_diag
