# expect: equivalent
# shows: It takes statistics of each sample alone.

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

model = nn.Sequential(
    nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True), nn.Flatten(),
    nn.Linear(4, 3),
)
