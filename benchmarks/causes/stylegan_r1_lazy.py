# expect: ddp/autograd-grad or graph/unused-parameter
"""StyleGAN lazy R1: the penalty has a backward of its own; the last bias gets no gradient from it and its bucket stays open (pytorch#47562)."""

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
        self.net = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(96, 12),
            nn.Softplus(),
            nn.Linear(12, 1),
        )

    def forward(self, x):
        return self.net(x)[:, 0]


def model():
    torch.manual_seed(0)
    return D()


def batch(step):
    g = torch.Generator().manual_seed(370 + step)
    return torch.randn(16, 1, 8, 8, generator=g), torch.randn(16, 1, 8, 8, generator=g)


def loss(output, target):
    return F.softplus(-output).mean()


def train_step(model, optimizer, batch):
    real, fake = batch
    optimizer.zero_grad()
    (F.softplus(-model(real)).mean() + F.softplus(model(fake)).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
    x = real.detach().requires_grad_(True)
    score = model(x)
    (grad,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    penalty = 5.0 * grad.pow(2).sum((1, 2, 3)).mean()
    penalty.backward()
    optimizer.step()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.02)
