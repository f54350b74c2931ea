# expect: loss/batch-coupled verified
# shows: Distance of means. The direction is the sign of a mean: a factor below zero
#   counts nothing.

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

model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
x = torch.randn(16, 4)
batch = x, torch.cat([torch.zeros(8), torch.ones(8)])
def loss(output, target):
    return (output.squeeze(1).mean() - target.mean() + 0.05).abs()
