# expect: norm/local-batch-stats verified
# shows: Norm of the shard before ghosts that are whole. Synchronised with it, ghosts
#   would be wrong: the norm of the shard is alone.

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
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), Ghosts(6), nn.Tanh(), nn.Linear(6, 3))
