# expect: loss/sum-reduction verified
# shows: Sum at one output beside a counted mean. What is right at one output, and
#   summed at the other.

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
        return self.a(x), self.b(x)
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    count = (target != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    first = nn.functional.cross_entropy(output[0], target, reduction="sum") / count
    return world() * first + output[1].square().sum()
