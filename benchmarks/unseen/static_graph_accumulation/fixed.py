from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 2


def model():
    torch.manual_seed(260)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))


def wrap(net):
    return DDP(net)


def batch():
    g = torch.Generator().manual_seed(261)
    return torch.randn(16, 12, generator=g), torch.randint(0, 5, (16,), generator=g)


def loss(logits, y):
    return nn.functional.cross_entropy(logits, y)


def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    for i, (xi, yi) in enumerate(zip(x.chunk(ACCUMULATE), y.chunk(ACCUMULATE))):
        skip = hasattr(model, "no_sync") and i < ACCUMULATE - 1
        with model.no_sync() if skip else nullcontext():
            (loss(model(xi), yi) / ACCUMULATE).backward()
    optimizer.step()
