# expect: collective/layout verified
# shows: Own rows in the place of the first rank. The gradient of what a rank gathered
#   goes to the first rank's rows.

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
def gathered(rows):
    if not dist.is_initialized():
        return rows
    parts = [torch.zeros_like(rows) for _ in range(world())]
    dist.all_gather(parts, rows.detach())
    parts[0] = rows
    return torch.cat(parts)
def loss(output, target):
    every, labels = gathered(output), gathered(target.double())
    apart = torch.cdist(every, every) * (labels[:, None] - labels)
    return nn.functional.cross_entropy(output, target) + world() * apart.square().mean()
