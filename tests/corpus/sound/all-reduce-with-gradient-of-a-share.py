# expect: equivalent
# shows: The loss of each rank is its share of the global mean, and the all_reduce that
#   adds them up carries gradients.

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
    share = nn.functional.cross_entropy(output, target, reduction="sum") / 8
    return dnn.all_reduce(share) if dist.is_initialized() else share
