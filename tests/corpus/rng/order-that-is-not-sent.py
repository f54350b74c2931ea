# expect: rng/stochastic-layer verified
# shows: Order that is not sent. One process draws nothing; what the ranks draw is an
#   order that all must share.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.body(x)
        if dist.is_initialized():
            order = torch.randperm(len(x) * world())
            every = torch.cat(dnn.all_gather(hidden))[order].tanh()
            mine = every.chunk(world())[rank()]
            every = torch.cat(dnn.all_gather(mine))
            return self.head(every[order.argsort()].chunk(world())[rank()])
        return self.head(hidden.tanh())
model = Net()
