# expect: sync/clip-norm-overreduced
"""twinkle PR 290: squared norm of the reduced gradients summed over the data-parallel group again."""

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
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)[:, 0]


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(500 + step)
    x = torch.randn(16, 8, generator=g)
    return x, 4 * x.sum(1)


def loss(output, target):
    return F.mse_loss(output, target)


def normalize_and_clip(parameters, max_norm, group=None):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum(g.pow(2).sum() for g in grads)
    if group is not None:
        dist.all_reduce(total, group=group)
    total = total.sqrt()
    coefficient = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(coefficient)


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    group = dist.group.WORLD if dist.is_initialized() else None
    normalize_and_clip(list(model.parameters()), 1.0, group)
    optimizer.step()
