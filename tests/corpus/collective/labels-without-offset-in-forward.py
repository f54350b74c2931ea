# expect: collective/layout verified
# shows: Labels without offset in forward. The same within forward.

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
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        a, keys = self.a(x), self.b(x)
        if dist.is_initialized():
            keys = torch.cat(dnn.all_gather(keys))
        return nn.functional.cross_entropy(a @ keys.T, torch.arange(len(a)))
model = Net()
loss = lambda output, target: output
