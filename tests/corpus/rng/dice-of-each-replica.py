# expect: rng/stochastic-layer verified
# options: --modes dp
# shows: The forward throws dice of its own, and every replica throws them anew.

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
dice = random.Random(3)
class Dropping(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if dice.random() < 0.5 else 2 * y
model = Dropping(4, 3)
