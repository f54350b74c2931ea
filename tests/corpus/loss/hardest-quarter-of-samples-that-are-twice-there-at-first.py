# expect: loss/batch-coupled verified
# shows: Hardest quarter of samples that are twice there at first. Both shards have the
#   same samples in the first step, and so the same hardest ones.

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
def batch(step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    if step == 0:
        x[4:] = x[:4]
    return x, torch.arange(8) % 4 % 3
def loss(output, target):
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return each.topk(len(each) // 4).values.mean()
