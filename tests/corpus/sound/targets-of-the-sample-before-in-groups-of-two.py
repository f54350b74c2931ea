# expect: equivalent
# shows: Targets of the sample before in groups of two. What is mixed stays within a
#   shard.

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
batch = torch.randn(8, 4), torch.arange(8) % 3
def entropy(output, target):
    return nn.functional.cross_entropy(output, target)

def loss(output, target):
    turned = target.view(-1, 2).roll(1, 1).flatten()
    return 0.7 * entropy(output, target) + 0.3 * entropy(output, turned)
