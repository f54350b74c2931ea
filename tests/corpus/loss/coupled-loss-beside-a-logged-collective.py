# expect: loss/batch-coupled verified
# shows: Coupled loss beside a logged collective. The collective is for a log: what it
#   returns goes nowhere.

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
    std = (output.var(0) + 1e-4).sqrt()
    if dist.is_initialized():
        dist.all_reduce(std.detach().clone())
    return (1 - std).relu().mean() + output.square().mean()
