# expect: forward/batch-coupled verified
# shows: Solver that adapts both ways. A solver adapts its steps to all rows that it is
#   given, and so does its backward.

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

class Adaptive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / (1 + x.norm())
    @staticmethod
    def backward(ctx, grad):
        return grad / (1 + grad.norm())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        return self.b(Adaptive.apply(self.a(x)))
model = Net()
