# expect: norm/local-batch-stats verified
# shows: A batch norm that is not torch's: it is known by what it does to samples, and
#   by its statistics, which it writes in place.

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

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("running_var", torch.ones(width))
    def forward(self, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        if self.training:
            with torch.no_grad():
                self.running_var.mul_(0.9).add_(0.1 * var)
        x = (x - mean) / (var + 1e-9).sqrt()
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), Norm(6), nn.Linear(6, 3)
    def forward(self, x):
        x = self.norm(self.first(x))
        return self.last(x.tanh())
model = Net()
