# expect: norm/local-batch-stats, state/ema-teacher-divergence
"""BatchNorm student, teacher EMA on rank 0 only."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Pair(nn.Module):
    def __init__(self):
        super().__init__()

        def net():
            return nn.Sequential(
                nn.Linear(9, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 4)
            )

        self.student, self.teacher = net(), net()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, weak, strong):
        with torch.no_grad():
            soft = self.teacher(weak)
        return self.student(strong), soft


def model():
    torch.manual_seed(0)
    return Pair()


def batch(step):
    g = torch.Generator().manual_seed(650 + step)
    x = torch.randn(16, 9, generator=g)
    return (x, x + 0.3 * torch.randn(16, 9, generator=g)), torch.randint(
        0, 4, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output[0], target) + F.mse_loss(
        output[0].softmax(1), output[1].softmax(1)
    )


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(*batch[0]), batch[1]).backward()
    optimizer.step()
    net = model.module if isinstance(model, DDP) else model
    if rank() == 0:
        with torch.no_grad():
            for s, t in zip(net.student.parameters(), net.teacher.parameters()):
                t.mul_(0.9).add_(s, alpha=0.1)
