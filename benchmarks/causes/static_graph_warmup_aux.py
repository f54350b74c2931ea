# expect: graph/static-graph-violated
"""static_graph=True while an auxiliary branch joins the loss only after a warm-up step."""

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
        self.body = nn.Linear(8, 16)
        self.main, self.aux = nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.main(h), self.aux(h)


def model():
    torch.manual_seed(0)
    return Net()


def wrap(model):
    return DDP(model, static_graph=True)


def batch(step):
    g = torch.Generator().manual_seed(460 + step)
    return torch.randn(16, 8, generator=g), (
        torch.randint(0, 3, (16,), generator=g),
        torch.full((16,), step),
    )


def loss(output, target):
    label, step = target
    value = F.cross_entropy(output[0], label)
    if int(step[0]) >= 1:
        value = value + 0.5 * F.cross_entropy(output[1], label)
    return value
