# expect: sync/no-sync-scope
"""Forward inside no_sync, backward outside (accelerate no_sync misuse): the flag is read in forward."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


import contextlib


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(470 + step)
    return torch.randn(16, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)


def train_step(model, optimizer, batch, accumulate=2):
    optimizer.zero_grad()
    no_sync = model.no_sync if isinstance(model, DDP) else contextlib.nullcontext
    losses = []
    with no_sync():
        for x, t in zip(batch[0].chunk(accumulate), batch[1].chunk(accumulate)):
            losses.append(loss(model(x), t) / accumulate)
    sum(losses).backward()
    optimizer.step()
