# expect: equivalent
# shows: A lazy module is called once before it is wrapped, so that DDP finds its
#   parameters.

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
    torch.manual_seed(0)
    made = nn.LazyLinear(3)
    made(batch[0])
    return made
