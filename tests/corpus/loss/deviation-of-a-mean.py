# expect: loss/batch-coupled verified
# shows: Deviation of a mean. The gradient at a sample is multiplied by what all others'
#   outputs are, smoothly.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = 3 * torch.randn(16, 4), torch.arange(16) % 3

def loss(output, target):
    return (output.mean(0) - 0.2).square().sum()
