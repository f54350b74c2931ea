# expect: loss/batch-coupled verified
# shows: Softmax over the classes that are there. Which classes a softmax takes follows
#   from the labels of the shard.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 20))
batch = torch.randn(8, 4), torch.arange(8) ** 2 % 19
def loss(output, target):
    there = target.unique()
    return nn.functional.cross_entropy(
        output[:, there], torch.searchsorted(there, target)
    )
