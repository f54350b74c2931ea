# expect: state/buffer-not-synced
"""broadcast_buffers=False also skips the constructor's sync: a random projection buffer seeded per rank stays different."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("projection", torch.randn(10, 6))
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x @ self.projection)


def model():
    torch.manual_seed(0)
    return Quantizer()


def wrap(model):
    torch.manual_seed(1234 + rank())
    if rank() > 0:
        model.projection.copy_(torch.randn_like(model.projection))
    return DDP(model, broadcast_buffers=False)


def batch(step):
    g = torch.Generator().manual_seed(220 + step)
    return torch.randn(16, 10, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)
