# expect: equivalent
# shows: A frozen parameter has another dtype than all others; DDP has no bucket for it.

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
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.bfloat16), False)
    def forward(self, x):
        return super().forward(x) * self.scale.to(x.dtype)
model = Net()
