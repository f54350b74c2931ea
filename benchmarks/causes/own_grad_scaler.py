# expect: sync/scaler-desync
"""pytorch#136009: loss scales differ between ranks; the scaled gradients are averaged and unscaled locally."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(560 + step)
    return torch.randn(16, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)


class Scaler:
    scale = 1024.0

    def update(self, loss):
        overflow = (loss * self.scale).item() > 1200.0
        self.scale = self.scale / 2 if overflow else self.scale * 2


def train_step(model, optimizer, batch):
    scaler = optimizer.__dict__.setdefault("scaler", Scaler())
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    (value * scaler.scale).backward()
    for p in model.parameters():
        p.grad /= scaler.scale
    optimizer.step()
    scaler.update(value.detach())
