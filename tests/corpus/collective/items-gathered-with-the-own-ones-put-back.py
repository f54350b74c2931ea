# expect: collective/no-autograd verified
# shows: Items gathered with the own ones put back. One tower is right and the other is
#   not: no two causes for that.

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

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x, y):
        return self.users(x), self.items(y)
model = Towers()
batch = (torch.randn(8, 4), torch.randn(8, 4)), None
def loss(output, target):
    users, items = output
    if world() > 1:
        every = [torch.empty_like(items) for _ in range(world())]
        dist.all_gather(every, items)
        every[rank()] = items
        items = torch.cat(every)
    labels = torch.arange(len(users)) + rank() * len(users)
    return nn.functional.cross_entropy(users @ items.T, labels)
