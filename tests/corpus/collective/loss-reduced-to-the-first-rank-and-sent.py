# expect: collective/no-autograd verified
# shows: Loss reduced to the first rank and sent. There is no reduce with a gradient:
#   each rank trains on its share of its own loss.

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
batch = torch.randn(8, 4), torch.arange(8) % 3
def loss(output, target):
    value = nn.functional.cross_entropy(output, target)
    if dist.is_initialized():
        value = value.unsqueeze(0)
        dist.reduce(value, dst=0)
        value = value / world()
        dist.broadcast(value, src=0)
    return value.sum()
