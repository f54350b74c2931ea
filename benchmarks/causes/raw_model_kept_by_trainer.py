# expect: ddp/forward-bypassed
"""The trainer keeps the model it got before wrapping and calls that one (RAE#40, Lightning 'training_step of .module')."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)
        self.time = nn.Linear(1, 8)

    def forward(self, x, t):
        h = F.silu(self.down(x) + self.time(t)[:, :, None, None])
        return self.up(h + F.silu(self.mid(h)))


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Unet()

    def training_losses(self, x, t, noise):
        a = torch.cos(t)[:, :, None, None]
        noisy = a * x + (1 - a**2).sqrt() * noise
        return {"mse": (self.net(noisy, t) - noise).pow(2).mean((1, 2, 3))}

    def forward(self, x, t, noise):
        return self.training_losses(x, t, noise)


def model():
    torch.manual_seed(0)
    return Diffusion()


def batch(step):
    g = torch.Generator().manual_seed(310 + step)
    return (
        torch.randn(16, 1, 8, 8, generator=g),
        torch.rand(16, 1, generator=g),
        torch.randn(16, 1, 8, 8, generator=g),
    ), torch.zeros(16)


def loss(output, target):
    return output["mse"].mean()


def train_step(model, optimizer, batch):
    (x, t, noise), _ = batch
    net = model.module if hasattr(model, "module") else model
    terms = net.training_losses(x, t, noise)
    value = terms["mse"].mean()
    optimizer.zero_grad()
    value.backward()
    optimizer.step()


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
