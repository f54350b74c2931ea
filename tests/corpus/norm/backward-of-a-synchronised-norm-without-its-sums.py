# expect: norm/syncbn-implementation verified
# shows: Backward of a synchronised norm without its sums. A synchronised norm with a
#   backward of its own, which asks for the group again.

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

class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, running):
        total = x.sum(0)
        if dist.is_initialized():
            dist.all_reduce(total)
        mean = total / (len(x) * world())
        running.lerp_(mean, 0.1)
        ctx.n = len(x) * world()
        return x - mean
    @staticmethod
    def backward(ctx, grad):
        return grad - grad.sum(0) / (ctx.n / world()), None
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(6))
    def forward(self, x):
        return Centre.apply(x, self.running).sin()
model = nn.Sequential(nn.Linear(4, 6), Norm(), nn.Linear(6, 3))
