# expect: equivalent
# shows: A batch norm takes statistics of 2 samples at a time, and no shard cuts such a
#   pair.

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

class Ghosts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
    def forward(self, x):
        return torch.cat([self.norm(ghost) for ghost in x.split(2)])
model = nn.Sequential(nn.Tanh(), nn.Linear(4, 6), Ghosts(6), nn.Tanh(), nn.Linear(6, 3))
