# expect: state/buffer-not-synced, sync/clip-norm-overreduced
"""Random Fourier features with a trained read-out; own clipping."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class RandomFeatures(nn.Module):
    def __init__(self, inputs=4, features=24):
        super().__init__()
        self.register_buffer("omega", torch.empty(inputs, features))
        self.register_buffer("phase", torch.empty(features))
        self.draw(0)

    def draw(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.omega.copy_(torch.randn(self.omega.shape, generator=g))
        self.phase.copy_(2 * math.pi * torch.rand(self.phase.shape, generator=g))

    def forward(self, x):
        return torch.cos(x @ self.omega + self.phase) * math.sqrt(
            2 / self.phase.numel()
        )


class KernelNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.features = RandomFeatures()
        self.out = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 2))

    def forward(self, x):
        return self.out(self.features(x * self.scale))


def model():
    torch.manual_seed(53)
    return KernelNet()


def wrap(model):
    model.features.draw(dist.get_rank())
    return DistributedDataParallel(model, broadcast_buffers=False)


def batch(step):
    g = torch.Generator().manual_seed(530 + step)
    x = torch.randn(16, 4, generator=g)
    return x, torch.stack([torch.sin(2 * x[:, 0]), x[:, 1] * x[:, 2]], 1)


def loss(output, target):
    return F.mse_loss(output, target)


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5)


def clip(params, limit):
    square = sum(p.grad.square().sum() for p in params)
    if dist.is_initialized():
        dist.all_reduce(square)
    norm = square.sqrt()
    if norm > limit:
        for p in params:
            p.grad.mul_(limit / norm)


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    clip(list(model.parameters()), 0.05)
    optimizer.step()
