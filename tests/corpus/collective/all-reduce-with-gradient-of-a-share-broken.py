# expect: collective/no-autograd verified
# shows: What sound/all-reduce-with-gradient-of-a-share.py does, broken by one change: a
#   collective without autograd in the loss: right value, wrong gradient.

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
    share = nn.functional.cross_entropy(output, target, reduction="sum") / 8
    return dist.all_reduce(share) or share if dist.is_initialized() else share
