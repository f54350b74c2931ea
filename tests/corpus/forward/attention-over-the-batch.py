# expect: forward/batch-coupled verified
# shows: Attention over the batch. The module that mixes has the samples in its second
#   dimension.

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
        self.mix = nn.MultiheadAttention(4, 1, batch_first=True)
        self.body = nn.Module()
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        mixed, _ = self.mix(x[None], x[None], x[None], need_weights=False)
        return self.head(x + mixed[0])
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, x):
        return self.net(x) * 1.0
model = Outer()
