# expect: norm/local-batch-stats verified
# shows: Batch norm in a zero initialised branch. Outputs of the first step are right:
#   the branch is multiplied by zero.

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

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        nn.init.zeros_(self.norm.weight)
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(x + self.norm(self.first(x)))
model = Block()
