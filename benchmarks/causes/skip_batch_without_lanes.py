# expect: graph/skipped-backward
"""LaneNet#12: a rank whose shard has no positive sample skips its backward."""

import torch
import torch.distributed as dist
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.net(x)


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(430 + step)
    positive = torch.rand(16, generator=g) < 0.6
    positive[0] = positive[8] = positive[4] = positive[12] = True
    if step == 1:
        positive[:8] = False
    return torch.randn(16, 8, generator=g), {
        "positive": positive,
        "offset": torch.randn(16, 2, generator=g),
    }


def loss(output, target):
    mask = target["positive"].to(output.dtype)[:, None]
    return (mask * (output - target["offset"]).pow(2)).sum() / output.numel()


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    output = model(x)
    if target["positive"].any():
        loss(output, target).backward()
    optimizer.step()
