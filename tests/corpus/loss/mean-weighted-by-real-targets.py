# expect: loss/local-normalizer verified
# shows: Mean weighted by real targets. Weights of samples, which are real numbers too,
#   divide.

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

model = nn.Linear(4, 1)
batch = torch.randn(8, 4), (torch.randn(8), torch.arange(8.0) + 0.5)
def loss(output, target):
    y, weight = target
    return (weight * (output[:, 0] - y).square()).sum() / weight.sum()
