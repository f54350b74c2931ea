# expect: forward/batch-coupled verified
# shows: Standardised by a module that waits: a module mixes samples.

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

class Standard(nn.Module):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return (x - x.mean(0)) / (x.std(0) + 1) if self.calls > 1 else x
model = nn.Sequential(nn.Linear(4, 6), Standard(), nn.Linear(6, 3))
