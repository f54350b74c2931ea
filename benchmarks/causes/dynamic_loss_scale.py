# expect: sync/scaler-desync
"""Own dynamic loss scaler for low-precision training of a small GAN-free image regressor."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class SuperResolution(nn.Module):
    def __init__(self, width=8, factor=2):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.PReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.PReLU(),
        )
        self.up = nn.Sequential(
            nn.Conv2d(width, factor**2, 3, padding=1), nn.PixelShuffle(factor)
        )
        self.scaler = None

    def forward(self, low):
        return self.up(self.body(low)) + F.interpolate(low, scale_factor=2)


class DynamicScaler:
    """Halves the scale while the scaled loss would leave the range, doubles it back every few steps."""

    def __init__(self, scale=2.0**12, limit=2.0**10, interval=2):
        self.scale, self.limit, self.interval, self.good = scale, limit, interval, 0

    @torch.no_grad()
    def adapt(self, value):
        value = value.detach().clone()
        while value.item() * self.scale > self.limit:
            self.scale, self.good = self.scale / 2, 0
        self.good += 1
        if self.good > self.interval:
            self.scale, self.good = self.scale * 2, 0

    def unscale(self, params):
        for p in params:
            if p.grad is not None:
                p.grad.div_(self.scale)


def model():
    torch.manual_seed(32)
    return SuperResolution()


def batch(step):
    g = torch.Generator().manual_seed(320 + step)
    contrast = torch.linspace(0.3, 3.0, 8)[:, None, None, None]  # sorted by exposure
    high = contrast * torch.randn(8, 1, 8, 8, generator=g)
    return F.avg_pool2d(high, 2), high


def loss(output, target):
    return F.mse_loss(output, target)


def train_step(model, optimizer, batch):
    net = model.module if hasattr(model, "module") else model
    if net.scaler is None:
        net.scaler = DynamicScaler()
    low, high = batch
    optimizer.zero_grad()
    value = loss(model(low), high)
    net.scaler.adapt(value)
    (value * net.scaler.scale).backward()
    net.scaler.unscale(net.parameters())
    optimizer.step()
