# expect: forward/batch-coupled verified
# shows: Mean over nodes beside messages with loops. The messages of all edges, then
#   those of all nodes' loops: rows of a sample lie nowhere together, and what they are
#   summed by are places in the whole batch.

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

class Sum(nn.Module):
    def forward(self, messages, to):
        return torch.zeros(int(to.max()) + 1, 4).index_add(0, to, messages)
class Center(nn.Module):
    def forward(self, x):
        return x - x.mean(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.sum = nn.Linear(4, 4), Sum()
        self.center, self.head = Center(), nn.Linear(4, 3)
    def forward(self, x):
        x = self.linear(x.flatten(0, 1))
        nodes = torch.arange(len(x))
        start = nodes[::3]
        to = torch.cat([start, start + 1, nodes])
        x = self.sum(x[torch.cat([start + 1, start + 2, nodes])], to)
        return self.head(torch.tanh(self.center(x)).unflatten(0, (-1, 3)).sum(1))
model = Net()
batch = torch.randn(8, 3, 4), torch.arange(8) % 3
