# expect: equivalent
# shows: Two layers share a weight: its gradient is the sum of both, reduced once.

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
