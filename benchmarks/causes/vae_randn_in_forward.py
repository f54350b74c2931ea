# expect: rng/stochastic-layer or rng/same-stream-all-ranks
"""VAE reparameterisation draws torch.randn_like in forward."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = (
            nn.Linear(12, 8),
            nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12)),
        )

    def forward(self, x, eps):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def model():
    torch.manual_seed(0)
    return VAE()


def batch(step):
    g = torch.Generator().manual_seed(250 + step)
    x = torch.rand(16, 12, generator=g)
    return (x, torch.randn(16, 4, generator=g)), x


def loss(output, target):
    x, mu, logvar = output
    rec = F.binary_cross_entropy_with_logits(x, target, reduction="none").sum(1).mean()
    return rec - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
