# expect: rng/same-stream-all-ranks
"""Denoising diffusion, noise and time steps drawn in the train step from a seeded generator."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 50
ALPHA_BAR = torch.cos(torch.linspace(0, 1, STEPS + 1)[1:] * 0.97 * math.pi / 2) ** 2


class Denoiser(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.mid = nn.Sequential(
            nn.GroupNorm(3, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self, x, t):
        self.step += 1
        angle = t[:, None] / STEPS * torch.arange(1, 5)
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1).to(x))
        h = self.first(x) + time[..., None, None]
        return self.last(h + self.mid(h))


def model():
    torch.manual_seed(0)
    return Denoiser()


def batch(step):
    g = torch.Generator().manual_seed(step + 1)
    return torch.randn(16, 1, 6, 6, generator=g).tanh(), torch.zeros(16)


def draw(step, like):
    """Reproducible noise of a training step."""
    generator = torch.Generator().manual_seed(1234 + step)
    noise = torch.randn(like.shape, generator=generator).to(like)
    t = torch.randint(0, STEPS, (len(like),), generator=generator)
    return noise, t


def loss(output, target):
    return F.mse_loss(output, target)


def train_step(model, optimizer, batch):
    x, _ = batch
    noise, t = draw(int(getattr(model, "module", model).step), x)
    a = ALPHA_BAR[t].to(x)[:, None, None, None]
    optimizer.zero_grad()
    loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
