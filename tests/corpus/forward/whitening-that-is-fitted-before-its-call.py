# expect: forward/batch-coupled verified
# shows: Whitening that is fitted before its call. Another method than forward writes
#   the statistics, with gradients.

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

class Whiten(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def fit(self, x):
        self.mean = x.mean(0)
        return self
    def forward(self, x):
        return x - self.mean
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.whiten, self.head = nn.Linear(4, 4), Whiten(), nn.Linear(4, 3)
    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.tanh(self.whiten.fit(x)(x)))
model = Net()
