# expect: collective/layout verified
# shows: Labels of patches without offset. Several rows per sample, and labels that
#   count from 0 on every rank.

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

model = nn.Linear(4, 6)
batch = torch.randn(8, 3, 4), torch.randn(8, 3, 6)
def loss(output, other):
    query, key = output.flatten(0, 1), other.flatten(0, 1)
    if dist.is_initialized():
        key = torch.cat(dnn.all_gather(key))
    return nn.functional.cross_entropy(query @ key.t(), torch.arange(len(query)))
