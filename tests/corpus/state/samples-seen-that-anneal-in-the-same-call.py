# expect: state/buffer-broadcast-overwrites verified
# shows: Samples seen that anneal in the same call. The call that counts reads the
#   count.

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
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        self.seen += len(x)
        return self.head(x) * (self.seen / 40)
model = Net()
