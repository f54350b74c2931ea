# expect: equivalent
# shows: A batch norm takes statistics of 4 samples at a time, and shards at world size
#   2 have 4.

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

class Ghost(nn.BatchNorm1d):
    def forward(self, x):
        return torch.cat([super(Ghost, self).forward(part) for part in x.split(4)])
norm = Ghost(4, track_running_stats=False)
model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3))
