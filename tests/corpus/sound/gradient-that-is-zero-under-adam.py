# expect: equivalent
# shows: The gradient of the bias before an instance norm is 0 but for rounding, which
#   Adam divides by itself.

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
    nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2), nn.Flatten(),
    nn.Linear(8, 3),
)
def optimizer(params):
    return torch.optim.Adam(params, lr=0.01)
