# expect: collective/no-autograd verified
# shows: Scatter around means of classes that carry no gradient. Of one term a mean is
#   taken over the shard, of the other over all: one exchange.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 0, 1, 1, 0, 0, 1])
def total(x):
    if dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x
def loss(output, target):
    hot = nn.functional.one_hot(target, 2).to(output.dtype)
    counts = total(hot.sum(0))
    centres = total(hot.t() @ output) / counts[:, None]
    within = (output - centres[target]).square().sum(1).mean()
    middle = (centres * counts[:, None]).sum(0) / counts.sum()
    between = ((centres - middle).square().sum(1) * counts).sum() / counts.sum()
    return within - 0.3 * between
