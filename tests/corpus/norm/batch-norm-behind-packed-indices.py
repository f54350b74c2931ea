# expect: norm/local-batch-stats verified
# shows: Batch norm behind packed indices. Nodes are counted from the shard's first one:
#   the module's input is no other.

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

class Mix(nn.Module):
    def forward(self, x, index):
        return x + x[index]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm, self.head = Mix(), nn.BatchNorm1d(4), nn.Linear(4, 3)
    def forward(self, x):
        start = torch.arange(len(x))[:, None] * 2
        index = (start + torch.tensor([[1, 0]])).flatten()
        x = self.mix(x.reshape(-1, 4), index)
        return self.head(self.norm(x).reshape(-1, 2, 4).sum(1))
model = Net()
batch = torch.randn(8, 2, 4), torch.arange(8) % 3
