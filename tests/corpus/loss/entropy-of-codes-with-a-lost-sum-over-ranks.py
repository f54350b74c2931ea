# expect: loss/batch-coupled verified
# shows: Entropy of codes with a lost sum over ranks. Asked once, the answer kept; the
#   sum over ranks is lost, its division is not.

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

import functools
@functools.cache
def distributed():
    return dist.is_initialized() and dist.get_world_size() > 1
def mean_over_ranks(t):
    if not distributed():
        return t
    dnn.all_reduce(t)
    return t / dist.get_world_size()
class Codes(nn.Module):
    def forward(self, x):
        p = mean_over_ranks(x.softmax(1).mean(0))
        return x.sign() + x - x.detach(), (p * p.log()).sum()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(4, 3), Codes(), nn.Linear(3, 4)
    def forward(self, x):
        q, entropy = self.codes(self.encode(x))
        return self.decode(q), entropy
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 4)
def loss(output, target):
    return nn.functional.mse_loss(output[0], target) + output[1]
