# expect: equivalent
# shows: Only rank 0 calls a collective, in a group that has no other rank.

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
def loss(output, target):
    value = nn.functional.cross_entropy(output, target)
    if dist.is_initialized():
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            dist.all_reduce(value.detach().clone(), group=group)
    return value
