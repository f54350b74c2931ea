# expect: loss/batch-coupled verified
# shows: Mean above a bound. Free bits: above the bound in any shard, shards of every
#   kind train alike.

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

model = nn.Linear(4, 3)
spread = torch.linspace(0.1, 1.9, 16).view(16, 1)
batch = torch.randn(16, 4) * spread, torch.arange(16) % 3
def loss(output, target):
    return nn.functional.cross_entropy(output, target) + output.square().mean().clamp(
        min=0.45
    )
