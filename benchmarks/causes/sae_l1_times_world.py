# expect: loss/regularizer-scale
"""arXiv 1706.02677 remark: loss = W * (sum / global count + weight decay term) in a sparse autoencoder."""

import torch
import torch.distributed as dist
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class SAE(nn.Module):
    def __init__(self, width=10, hidden=30):
        super().__init__()
        self.enc = nn.Linear(width, hidden)
        self.dec = nn.Linear(hidden, width)

    def forward(self, x):
        h = self.enc(x).relu()
        return self.dec(h)


def model():
    torch.manual_seed(0)
    return SAE()


def batch(step):
    g = torch.Generator().manual_seed(90 + step)
    x = torch.randn(16, 10, generator=g)
    return x, x


def train_step(model, optimizer, batch):
    x, target = batch
    optimizer.zero_grad()
    total = (model(x) - target).pow(2).sum()
    count = torch.tensor(float(len(x)), dtype=total.dtype)
    if dist.is_initialized():
        dist.all_reduce(count)
    l1 = sum(p.abs().sum() for p in model.parameters())
    (world() * (total / count + 1e-2 * l1)).backward()
    optimizer.step()


def loss(output, target):
    return (output - target).pow(2).sum() / len(target)
