# expect: equivalent
# shows: Classes have weights, and with soft targets cross_entropy divides by the number
#   of samples, not by the sum of weights.

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
batch = torch.randn(8, 4), torch.rand(8, 3).softmax(1)
def loss(output, target):
    weight = torch.tensor([1.0, 2.0, 5.0]).to(output)
    return nn.functional.cross_entropy(output, target, weight=weight)
