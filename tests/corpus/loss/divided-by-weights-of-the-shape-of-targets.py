# expect: loss/local-normalizer verified
# shows: Divided by weights of the shape of targets. Weights of the targets' shape,
#   which no factor on targets changes but by rounding.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
batch = torch.randn(8, 4), torch.rand(8, 2) + 0.2
def loss(output, target):
    weights = (target.amin(1) / target.amax(1)).sqrt()
    return ((output - target).abs().sum(1) * weights).sum() / weights.sum()
