# expect: norm/syncbn-implementation
"""Own SyncBN: moments all-reduced by raw dist.all_reduce, gradients through the statistics lost."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class NaiveSyncBatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        if not (dist.is_initialized() and self.training):
            return super().forward(x)
        mean, meansqr = x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))
        vec = torch.cat([mean, meansqr])
        vec = vec.clone()
        dist.all_reduce(vec.detach())
        mean, meansqr = torch.split(vec / world(), x.shape[1])
        var = meansqr - mean * mean
        n = x.numel() / x.shape[1] * world()
        with torch.no_grad():
            self.running_mean += self.momentum * (mean.detach() - self.running_mean)
            self.running_var += self.momentum * (
                var.detach() * n / (n - 1) - self.running_var
            )
            self.num_batches_tracked += 1
        scale = self.weight * (var + self.eps).rsqrt()
        bias = self.bias - mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 6, 3, padding=1), NaiveSyncBatchNorm(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), NaiveSyncBatchNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        return self.head(x.mean((2, 3)))


def model():
    torch.manual_seed(0)
    return Net()


def batch(step):
    g = torch.Generator().manual_seed(190 + step)
    return torch.randn(16, 2, 6, 6, generator=g), torch.randint(
        0, 3, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output, target)
