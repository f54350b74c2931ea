# expect: equivalent
# needs: torch 2.9: gloo of older versions has no ReduceOp.AVG
# shows: A sum is divided by the mean of the ranks' counts: that is the count of all
#   over the world size, which DDP's mean needs.

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
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, -100])
def loss(output, target):
    count = (target != -100).sum().to(output.dtype)
    if dist.is_initialized():
        dist.all_reduce(count, op=dist.ReduceOp.AVG)
    return nn.functional.cross_entropy(output, target, reduction="sum") / count
