# expect: sync/clip-before-reduce
"""Neural ODE-like residual flow; every gradient entry is limited to a fixed range."""

import torch
import torch.nn.functional as F
from torch import nn

LIMIT = 0.02


class Field(nn.Module):
    def __init__(self, dim=3, width=16):
        super().__init__()
        self.inner = nn.Linear(dim + 1, width)
        self.outer = nn.Linear(width, dim)

    def forward(self, t, x):
        time = torch.full_like(x[:, :1], t)
        return self.outer(torch.tanh(self.inner(torch.cat([x, time], 1))))


class Flow(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.field, self.steps = Field(), steps
        self.read_out = nn.Linear(3, 3)
        self.guards = []

    def forward(self, x):
        dt = 1 / self.steps
        for i in range(self.steps):  # midpoint rule
            half = x + 0.5 * dt * self.field(i * dt, x)
            x = x + dt * self.field((i + 0.5) * dt, half)
        return self.read_out(x)


def model():
    torch.manual_seed(24)
    return Flow()


def batch(step):
    g = torch.Generator().manual_seed(241 + step)
    x = torch.randn(16, 3, generator=g)
    return x, torch.stack([x[:, 1], -x[:, 0], x[:, 2] ** 2], 1)


def loss(output, target):
    return F.mse_loss(output, target)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5)


def train_step(model, optimizer, batch):
    net = getattr(model, "module", model)
    if not net.guards:
        net.guards = [
            p.register_hook(lambda g: g.clamp(-LIMIT, LIMIT)) for p in net.parameters()
        ]
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
