# expect: equivalent
# shows: Rank 0 alone validates, past the wrapper: that calls no collective.

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

class Offset(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.ones(3))
    def forward(self, x):
        return x + self.by
model = nn.Sequential(nn.Linear(4, 3), Offset())

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            getattr(model, 'module', model)(x[:2])
