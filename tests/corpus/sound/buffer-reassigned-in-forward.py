# expect: equivalent
# shows: A counter in a buffer is assigned anew in forward, where DDP broadcasts
#   buffers: every rank counts alike.

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

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)
model = Net()
