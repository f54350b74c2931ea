from contextlib import nullcontext

import torch
from torch import nn

RHO = 0.2


def model():
    torch.manual_seed(200)
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 4))


def batch():
    g = torch.Generator().manual_seed(201)
    return torch.randn(16, 10, generator=g), torch.randint(0, 4, (16,), generator=g)


def loss(output, y):
    return nn.functional.cross_entropy(output, y)


@torch.no_grad()
def first_step(params):
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    shift = [RHO * p.grad / (norm + 1e-12) for p in params]
    for p, e in zip(params, shift):
        p.add_(e)
        p.grad = None
    return shift


@torch.no_grad()
def second_step(params, shift, optimizer):
    for p, e in zip(params, shift):
        p.sub_(e)
    optimizer.step()


def train_step(model, optimizer, batch):
    x, y = batch
    params = list(model.parameters())
    optimizer.zero_grad()
    ascent = model.no_sync if hasattr(model, "no_sync") else nullcontext
    with ascent():
        loss(model(x), y).backward()
    shift = first_step(params)
    loss(model(x), y).backward()
    second_step(params, shift, optimizer)
