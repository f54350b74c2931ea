# expect: graph/unused-parameter verified
# shows: Token that no output depends on. The module is called, the parameter is not
#   used.

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
        self.head, self.token = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))
    def forward(self, x, masked=None):
        return self.head(x if masked is None else torch.where(masked, self.token, x))
model = Net()
wrap = DDP
