# expect: state/buffer-broadcast-overwrites
"""MoCo without concat_all_gather: each rank enqueues its own keys."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class MoCo(nn.Module):
    def __init__(self, dim=8, k=64, m=0.9, t=0.2):
        super().__init__()
        self.m, self.t, self.k = m, t, k
        self.q = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.kenc = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.kenc.load_state_dict(self.q.state_dict())
        self.kenc.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(k, dim), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        p = int(self.ptr)
        self.queue[p : p + len(keys)] = keys
        self.ptr[0] = (p + len(keys)) % self.k

    def forward(self, im_q, im_k):
        q = F.normalize(self.q(im_q), dim=1)
        with torch.no_grad():
            for a, b in zip(self.q.parameters(), self.kenc.parameters()):
                b.mul_(self.m).add_(a, alpha=1 - self.m)
            k = F.normalize(self.kenc(im_k), dim=1)
        pos = (q * k).sum(1, keepdim=True)
        neg = q @ self.queue.clone().detach().t()
        self.enqueue(k)
        return torch.cat([pos, neg], 1) / self.t


def model():
    torch.manual_seed(0)
    return MoCo()


def batch(step):
    g = torch.Generator().manual_seed(210 + step)
    x = torch.randn(16, 10, generator=g)
    return (x + 0.1 * torch.randn(16, 10, generator=g), x), torch.zeros(
        16, dtype=torch.long
    )


def loss(output, target):
    return F.cross_entropy(output, target)
