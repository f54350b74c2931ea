# expect: collective/layout verified
# shows: Kept labels without offset and a pooling forward. The labels are kept from step
#   to step, and forward picks rows by an arange.

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
        tokens = torch.stack([x, 2 * x], 1)
        last = tokens[torch.arange(len(x)), x[:, 0].gt(0).long()]
        return self.a(last), self.b(last)
model = Net()
class Contrast:
    def __init__(self):
        self.kept = {}
    def __call__(self, output, target):
        a, keys = output
        if dist.is_initialized():
            keys = torch.cat(dnn.all_gather(keys))
        labels = self.kept.setdefault(len(a), torch.arange(len(a)))
        return nn.functional.cross_entropy(a @ keys.T, labels)
loss = Contrast()
