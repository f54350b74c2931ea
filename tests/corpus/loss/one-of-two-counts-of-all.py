# expect: loss/missing-world-scale verified
# shows: One of two counts of all. Counts of two kinds, one of them divided by in the
#   right way.

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
    n = torch.stack([(target >= 0).sum(), (target < 0).sum()]).double()
    if dist.is_initialized():
        dist.all_reduce(n)
    unknown = (output.logsumexp(-1).square() * (target < 0)).sum()
    return summed(output, target) / n[0] + world() * unknown / n[1]
