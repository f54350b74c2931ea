# expect: loss/empty-shard verified
# shows: No positives on one rank. Every second sample would be as many positives on
#   each rank, by chance.

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
batch = torch.randn(8, 4), torch.tensor([1, 2, 0, 0, 0, 0, 0, 0])
def loss(output, target):
    positive = target > 0
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return output.square().mean() + each[positive].sum() / positive.sum()
