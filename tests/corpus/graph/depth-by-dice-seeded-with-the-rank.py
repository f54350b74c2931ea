# expect: graph/rank-dependent-branch verified
# shows: Depth by dice seeded with the rank. The dice are the target's own and seeded as
#   DDP is built: no generator of torch's.

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

import random
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.head, self.dice = nn.Linear(4, 3), random.Random(2)
    def forward(self, x):
        for part in self.parts:
            if self.dice.random() >= 0.4:
                x = x + part(x).tanh()
        return self.head(x)
def model():
    torch.manual_seed(0)
    return Deep()
def wrap(model):
    model.dice.seed(2 + rank())
    return DDP(model, find_unused_parameters=True)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
