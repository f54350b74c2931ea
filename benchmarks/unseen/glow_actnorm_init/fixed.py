import torch
import torch.distributed as dist
from torch import nn


class ActNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, channels))
        self.scale = nn.Parameter(torch.ones(1, channels))
        self.initialized = False

    @torch.no_grad()
    def initialize(self, x):
        mean = x.mean(0, keepdim=True)
        sq = x.pow(2).mean(0, keepdim=True)
        if dist.is_initialized():
            for stat in (mean, sq):
                dist.all_reduce(stat)
                stat /= dist.get_world_size()
        self.loc.copy_(-mean)
        self.scale.copy_(1 / ((sq - mean ** 2).sqrt() + 1e-6))
        self.initialized = True

    def forward(self, x):
        if not self.initialized:
            self.initialize(x)
        return self.scale * (x + self.loc), self.scale.abs().log().sum()


class Flow(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.actnorm = ActNorm(dim)
        self.coupling = nn.Sequential(nn.Linear(dim // 2, 16), nn.ReLU(), nn.Linear(16, dim))

    def forward(self, x):
        y, logdet = self.actnorm(x)
        a, b = y.chunk(2, 1)
        s, t = self.coupling(a).chunk(2, 1)
        s = torch.tanh(s)
        z = torch.cat([a, b * s.exp() + t], 1)
        return z, logdet + s.sum(1)


def model():
    torch.manual_seed(190)
    return Flow()


def batch():
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(191))
    return x * torch.linspace(0.4, 2.5, 16)[:, None] + 1, torch.zeros(16)


def loss(output, _):
    z, logdet = output
    return (0.5 * z.pow(2).sum(1) - logdet).mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=0.02)
