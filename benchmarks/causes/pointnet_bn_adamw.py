# expect: norm/local-batch-stats
"""PointNet with BatchNorm1d over [B, C, N], AdamW, clipping in the step."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(3, 16, 1), nn.Conv1d(16, 32, 1)
        self.n1, self.n2 = nn.BatchNorm1d(16), nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 5)

    def forward(self, points):
        x = self.n1(self.c1(points.transpose(1, 2))).relu()
        return self.head(self.n2(self.c2(x)).amax(-1))


def model():
    torch.manual_seed(0)
    return PointNet()


def batch(step):
    g = torch.Generator().manual_seed(180 + step)
    return torch.randn(16, 20, 3, generator=g), torch.randint(0, 5, (16,), generator=g)


def loss(output, target):
    return F.nll_loss(F.log_softmax(output, -1), target)


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
