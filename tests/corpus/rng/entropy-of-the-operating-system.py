# expect: rng/stochastic-layer unverified
# shows: Entropy of the operating system. Other rows than in one process, and other ones
#   in one process run again.

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
class Noisy(nn.Module):
    def forward(self, x):
        return x * (1 + random.SystemRandom().random())
model = nn.Sequential(nn.Linear(4, 6), Noisy(), nn.Linear(6, 3))
