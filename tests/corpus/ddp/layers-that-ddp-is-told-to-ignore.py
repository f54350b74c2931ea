# expect: ddp/wrapper-missing verified
# shows: Layers that DDP is told to ignore: trained parameters are in no DDP object.

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

model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
def wrap(model):
    names = [name for name, _ in model[0].named_parameters(prefix="0")]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    return DDP(model)
