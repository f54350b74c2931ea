# expect: norm/local-batch-stats verified
# shows: Norms that model calls before it returns. The statistics that all ranks start
#   from are what the norm makes of more rows.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        last = nn.SyncBatchNorm if world() > 1 else nn.BatchNorm1d
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(6, 3), last(3))
        self(torch.arange(8.0).view(2, 4))
    def forward(self, x):
        return self.head(self.body(x))
def model():
    torch.manual_seed(0)
    return Net()
