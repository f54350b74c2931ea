# expect: loss/batch-coupled verified
# shows: Logarithm of the mean. Its gradient has one factor per rank, as a quotient's,
#   and it is none.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.randn(8, 3) * torch.linspace(0.2, 3, 8)[:, None]
def loss(output, target):
    return 10 * torch.log10(nn.functional.mse_loss(output, target))
