# expect: state/buffer-broadcast-overwrites, loss/sum-reduction
"""Class centres in a buffer updated from the shard (centre loss), and a summed loss."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 3)
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x):
        h = self.body(x).tanh()
        out = self.head(h), h - self.centre
        if self.training:
            mean = h.detach().mean(0)
            self.centre.mul_(0.9).add_(mean, alpha=0.1)
        return out


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(670 + step)
    return torch.randn(16, 8, generator=g) + torch.linspace(-1, 1, 16)[
        :, None
    ], torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    logits, spread = output
    return F.cross_entropy(logits, target, reduction="sum") + 0.1 * spread.pow(2).sum()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.01)
