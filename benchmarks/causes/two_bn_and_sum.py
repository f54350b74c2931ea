# expect: norm/local-batch-stats, loss/sum-reduction
"""Local BatchNorm and a summed loss."""

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
        self.a = nn.Linear(8, 16)
        self.n = nn.BatchNorm1d(16)
        self.b = nn.Linear(16, 3)

    def forward(self, x):
        return self.b(self.n(self.a(x)).relu())


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(600 + step)
    return torch.randn(16, 8, generator=g), torch.randn(16, 3, generator=g)


def loss(output, target):
    return (output - target).pow(2).sum() / 10


def optimizer(params):
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)
