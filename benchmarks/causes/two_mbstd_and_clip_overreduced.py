# expect: forward/batch-coupled, sync/clip-norm-overreduced
"""Minibatch standard deviation in the discriminator and a clip norm reduced again."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 16), nn.Linear(17, 1)

    def forward(self, x):
        h = F.leaky_relu(self.a(x), 0.2)
        std = h.std(0, unbiased=False).mean().expand(len(h), 1)
        return self.b(torch.cat([h, std], 1))[:, 0]


def model():
    torch.manual_seed(0)
    return D()


def batch(step):
    g = torch.Generator().manual_seed(640 + step)
    return torch.randn(16, 10, generator=g) * 3, torch.randn(16, generator=g)


def loss(output, target):
    return (10 * output - target).pow(2).mean()


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    total = sum(p.grad.pow(2).sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(total)
    scale = (1.0 / total.sqrt()).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)
    optimizer.step()
