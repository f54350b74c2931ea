# expect: equivalent
# shows: The count of all ranks is reduced without gradient, which a count does not
#   need, and the world size cancels DDP's mean.

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
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    total = nn.functional.cross_entropy(output, target, reduction="sum")
    return world() * total / count
