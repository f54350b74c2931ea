# expect: loss/batch-coupled verified
# shows: Mean over the hardest half. Which samples count is decided among all of them.

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
    values = nn.functional.cross_entropy(output, target, reduction="none")
    return values.topk(len(values) // 2).values.mean()
