# expect: collective/no-autograd verified, loss/local-normalizer verified
# shows: Gather without gradient beside a token mean. Two terms of one loss, on outputs
#   of their own, wrong in ways of their own.

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
        self.a, self.b, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 3)
    def forward(self, x):
        return self.a(x), self.b(x), self.head(x)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def rows_of_all(x):
    if world() == 1:
        return x
    rows = [torch.zeros_like(x) for _ in range(world())]
    dist.all_gather(rows, x.detach())
    rows[rank()] = x
    return torch.cat(rows)
def loss(output, target):
    a, b = rows_of_all(output[0]), rows_of_all(output[1])
    labels = torch.arange(len(a))
    contrast = nn.functional.cross_entropy(a @ b.t(), labels)
    return contrast + nn.functional.cross_entropy(output[2], target)
