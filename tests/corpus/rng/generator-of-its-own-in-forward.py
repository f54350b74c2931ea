# expect: rng/same-stream-all-ranks verified
# shows: Generator of its own in forward. Other rows than in one process, as of a module
#   that mixes samples.

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

class Noisy(nn.Module):
    def forward(self, x):
        g = torch.Generator().manual_seed(7)
        return x + torch.randn(x.shape, generator=g)
model = nn.Sequential(nn.Linear(4, 6), Noisy(), nn.Linear(6, 3))
