# expect: state/ema-teacher-divergence
"""Mean teacher updated on rank 0 only, used for the consistency loss on all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()

        def net():
            return nn.Sequential(nn.Linear(9, 20), nn.GELU(), nn.Linear(20, 4))

        self.student, self.teacher = net(), net()
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)

    def forward(self, weak, strong):
        with torch.no_grad():
            soft = self.teacher(weak)
        return self.student(strong), soft


def model():
    torch.manual_seed(0)
    return MeanTeacher()


def batch(step):
    g = torch.Generator().manual_seed(240 + step)
    x = torch.randn(16, 9, generator=g)
    return (x, x + 0.3 * torch.randn(16, 9, generator=g)), torch.randint(
        0, 4, (16,), generator=g
    )


def loss(output, target):
    student, teacher = output
    return F.cross_entropy(student, target) + 2.0 * F.mse_loss(
        student.softmax(1), teacher.softmax(1)
    )


@torch.no_grad()
def update_ema(net, decay=0.9):
    for s, t in zip(net.student.parameters(), net.teacher.parameters()):
        t.mul_(decay).add_(s, alpha=1 - decay)


def train_step(model, optimizer, batch):
    inputs, target = batch
    optimizer.zero_grad()
    loss(model(*inputs), target).backward()
    optimizer.step()
    net = model.module if isinstance(model, DDP) else model
    if rank() == 0:
        update_ema(net)
