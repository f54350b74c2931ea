# expect: loss/batch-coupled verified
# shows: Samples chosen among others. Pairs beyond the largest distance of the others
#   count: no count divides them.

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

model = nn.Linear(4, 1)
def loss(output, target):
    size = output.square().squeeze(1)
    return size[size > size.detach().mean()].sum() / 8
