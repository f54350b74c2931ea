# expect: equivalent
# shows: The forward divides by the number of its calls, kept in an attribute: every
#   rank counts alike.

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
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls
model = Net(4, 3)
