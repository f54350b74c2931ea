# expect: graph/unused-parameter verified
# shows: Layer left out in the second step. The first step uses it, and its output
#   reaches the loss there.

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
        self.a, self.b, self.calls = nn.Linear(4, 4), nn.Linear(4, 3), 0
        self.skip = nn.Linear(4, 4)
    def forward(self, x):
        self.calls += 1
        x = self.a(x)
        return self.b(x if self.calls == 2 else x + self.skip(x).tanh())
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4), torch.arange(8) % 3
wrap = DDP
