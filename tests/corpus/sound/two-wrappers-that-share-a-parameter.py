# expect: equivalent
# shows: Each part has a DDP of its own, and two of them share a weight: both average
#   its gradient, which changes nothing.

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
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)
        self.b.weight = self.a.weight
    def forward(self, x):
        return self.head(self.b(self.a(x).tanh()))
model = Net()

def wrap(model):
    model.a, model.b = DDP(model.a), DDP(model.b)
    model.head = DDP(model.head)
    return model
