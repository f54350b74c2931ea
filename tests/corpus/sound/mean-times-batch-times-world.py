# expect: equivalent
# shows: The mean is multiplied by the size of the shard and by the world size, and
#   divided by the global batch: that is the mean.

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
    mean = nn.functional.cross_entropy(output, target)
    return mean * len(target) * world() / 8
