# expect: loss/local-normalizer verified
# shows: Count reduced to the first rank. Only the first rank has the count of all;
#   another has what gloo left of it.

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
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -1, 1, -1, -1, 0])
def loss(output, target):
    count = (target >= 0).sum()
    if dist.is_initialized():
        dist.reduce(count, dst=0)
    each = nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="sum")
    return world() * each / count
