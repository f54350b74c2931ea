# expect: equivalent
# shows: Ranks begin with weights of their own, and DDP sends those of rank 0 to all
#   when it is built.

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

def model():
    torch.manual_seed(rank())
    return nn.Linear(4, 3)
