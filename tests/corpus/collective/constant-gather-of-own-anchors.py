# expect: collective/no-autograd verified
# shows: Constant gather of own anchors. The value is right in the mean only: every rank
#   has anchors of its own.

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
batch = torch.randn(8, 4), torch.arange(8) % 2
@torch.no_grad()
def constant(x):
    parts = [torch.empty_like(x) for _ in range(world())]
    dist.all_gather(parts, x)
    return parts
def loss(output, target):
    z, first = output, 0
    if dist.is_initialized():
        parts = constant(output)
        parts[rank()] = output
        z, first = torch.cat(parts), rank() * len(output)
    labels = torch.arange(len(output)) + first
    return nn.functional.cross_entropy(output @ z.T, labels)
