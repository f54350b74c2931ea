# expect: state/forward-writes-parameter verified
# shows: Parameters initialised from the first batch. What the norm wrote into its
#   parameters reaches the loss by a scalar, too.

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

class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.is_new = True
    def forward(self, x):
        if self.is_new:
            self.scale.data.copy_(1 / x.std(0))
            self.is_new = False
        return x * self.scale, self.scale.log().sum()
class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out = ActNorm(), nn.Linear(4, 4)
    def forward(self, x):
        rows, volume = self.norm(x)
        return self.out(rows).tanh(), volume + 0 * rows.sum(1)
model = Flow()
def loss(output, target):
    return output[0].square().sum(1).mean() - output[1].mean()
