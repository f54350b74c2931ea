# expect: loss/batch-coupled verified, state/ema-teacher-divergence unverified
# shows: Average by the own samples behind an overlap. The fix of the loss shows all
#   samples to the whole step.

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

class WithAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.average = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    def forward(self, x):
        return self.body(x)
    @torch.no_grad()
    def follow(self, decay):
        for slow, fast in zip(self.average.parameters(), self.body.parameters()):
            slow.lerp_(fast, 1 - decay)
model = WithAverage()
def bare(model):
    return model.module if isinstance(model, DDP) else model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    p = model(x).softmax(1)[torch.arange(len(y)), y]
    (1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2).backward()
    optimizer.step()
    bare(model).follow(0.5 ** (len(x) / 10))
