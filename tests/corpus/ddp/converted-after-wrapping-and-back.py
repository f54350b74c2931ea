# expect: ddp/converted-after-wrap verified
# shows: Converted after wrapping and back. There and back: dtypes are as they were, the
#   hooks of DDP are gone.

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
    ddp = DDP(model)
    dtype = model.weight.dtype
    model.to(torch.complex64).to(dtype)
    return ddp
