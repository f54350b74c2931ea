# expect: equivalent
# shows: Each rank uses another layer, as the single process does for the same samples;
#   DDP looks for unused parameters.

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
        self.even, self.odd = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        if not dist.is_initialized():
            parts = zip((self.even, self.odd) * 2, x.chunk(2))
            return torch.cat([part(rows) for part, rows in parts])
        return (self.odd if rank() % 2 else self.even)(x)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
