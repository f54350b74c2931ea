# expect: ddp/wrapper-missing
"""pytorch-metric-learning#710: the proxies of the loss are trained but not wrapped."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 8)
        )
        self.proxies = ProxyHead(6, 8)

    def forward(self, x):
        return self.proxies(self.trunk(x))


class ProxyHead(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))

    def forward(self, x):
        return 8 * F.normalize(x, dim=1) @ F.normalize(self.weight, dim=1).t()


def model():
    torch.manual_seed(0)
    return Net()


def wrap(model):
    model.trunk = DDP(model.trunk)
    return model


def batch(step):
    g = torch.Generator().manual_seed(300 + step)
    return torch.randn(16, 1, 8, 8, generator=g), torch.randint(
        0, 6, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output, target)
