# expect: data/batch-layout verified
# shows: Groups related by their targets alone. No factor per rank, as of counts that
#   differ.

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
batch = torch.randn(8, 4), torch.randn(8)
def loss(output, target):
    groups = target.reshape(4, -1)  # sample i belongs to group i % 2
    advantage = (groups - groups.mean(0)) / (groups.std(0) + 1e-4)
    return -(output[:, 0].tanh() * advantage.flatten()).mean()
