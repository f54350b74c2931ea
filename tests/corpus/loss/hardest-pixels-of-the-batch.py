# expect: loss/batch-coupled verified
# shows: Hardest pixels of the batch. At least so many pixels of a call, where fewer are
#   hard: of each shard, then.

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

model = nn.Conv1d(4, 3, 1)
batch = torch.randn(8, 4, 6), torch.arange(48).reshape(8, 6) % 3
def loss(output, target):
    each = nn.functional.cross_entropy(output, target, reduction="none").flatten()
    hard = each[each > 1.5]
    return (hard if len(hard) >= 12 else each.topk(12).values).mean()
