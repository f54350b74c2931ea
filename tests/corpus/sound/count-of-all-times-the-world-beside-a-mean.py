# expect: equivalent
# shows: A sum is divided by the count of all ranks and multiplied by the world size,
#   which DDP's mean takes away again; a mean is added.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, 1, -100, -100, 2, 0])
def summed(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
def flatness(output):
    return 0.1 * output.logsumexp(-1).square().mean()

def loss(output, target):
    n = (target >= 0).sum()
    if dist.is_initialized():
        dist.all_reduce(n)
    return summed(output, target) * world() / n + flatness(output)
