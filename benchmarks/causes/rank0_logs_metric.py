# expect: sync/collective-mismatch
"""transformers#35387-like: the logged metric is reduced inside 'if rank == 0'."""

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
    g = torch.Generator().manual_seed(540 + step)
    return torch.randn(16, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)


def reduce_mean(value):
    value = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= world()
    return value.item()


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    if rank() == 0:
        logged = reduce_mean(value)
        assert logged == logged
