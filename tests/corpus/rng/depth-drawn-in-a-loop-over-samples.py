# expect: rng/stochastic-layer verified
# shows: Depth drawn in a loop over samples: the forward draws random numbers.

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
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)
    def forward(self, x):
        a = 0 * self.a(x).sum()
        rows = [r + self.a(r) if torch.rand(1) > 0.3 else r for r in x]
        return self.b(torch.stack(rows)) + a
model = Net()
