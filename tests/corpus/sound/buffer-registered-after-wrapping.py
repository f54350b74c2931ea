# expect: equivalent
# shows: DDP does not know a buffer that is registered after wrapping, and nothing
#   writes it.

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
def wrap(model):
    wrapped = DDP(model)
    model.register_buffer("late", torch.ones(2))
    return wrapped
