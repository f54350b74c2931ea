# expect: ddp/autograd-grad
"""PCGrad-like multi-task step: autograd.grad per task, projected, written to p.grad; no DDP hook runs."""

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
        self.shared = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.a, self.b = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x):
        h = self.shared(x)
        return self.a(h)[:, 0], self.b(h)


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(360 + step)
    return torch.randn(16, 8, generator=g), (
        torch.randn(16, generator=g),
        torch.randint(0, 3, (16,), generator=g),
    )


def losses(output, target):
    return F.mse_loss(output[0], target[0]), F.cross_entropy(output[1], target[1])


def loss(output, target):
    return sum(losses(output, target))


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    first, second = losses(model(x), target)
    params = [p for p in model.parameters()]
    total = torch.autograd.grad(first + 0.5 * second, params)
    for p, g in zip(params, total):
        p.grad = g
    optimizer.step()
