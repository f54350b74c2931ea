# expect: sync/control-desync verified
# shows: Counts in an attribute. A plain attribute of the model, a list of arrays and a
#   number in a dict.

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
        self.seen = torch.ones(3)
    def forward(self, x, y):
        prior = (self.seen / self.seen.sum()).log()
        self.seen = 0.8 * self.seen + torch.bincount(y, minlength=3).float()
        return nn.functional.cross_entropy(super().forward(x) + prior, y)
model = Net()
batch = (torch.randn(8, 4), torch.tensor([0, 0, 0, 1, 2, 2, 1, 2])), torch.zeros(8)
loss = lambda output, target: output
