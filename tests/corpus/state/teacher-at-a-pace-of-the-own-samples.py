# expect: state/ema-teacher-divergence verified
# shows: Teacher at a pace of the own samples. No rank's own teacher is one process's:
#   to send the first rank's mends nothing.

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()

import copy
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
        self.teacher.requires_grad_(False)
    def forward(self, x):
        return self.student(x), self.teacher(x)
model = Pair()
batch = torch.randn(8, 4) * torch.arange(1.0, 9)[:, None]
batch = batch, torch.zeros(8)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    ours, theirs = model(batch[0])
    (ours - theirs).square().mean().backward()
    optimizer.step()
    net = getattr(model, "module", model)
    pace = torch.exp(-(ours - theirs).detach().abs().amax(1)).mean()
    with torch.no_grad():
        for t, s in zip(net.teacher.parameters(), net.student.parameters()):
            t.mul_(1 - pace).add_(pace * s)
