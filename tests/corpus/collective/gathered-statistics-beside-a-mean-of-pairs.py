# expect: collective/no-autograd verified
# shows: Gathered statistics beside a mean of pairs. Invariance is a mean of pairs; the
#   statistics have lost what other ranks say.

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

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)
    @staticmethod
    def backward(ctx, *grads):
        return grads[rank()]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, a, b):
        return self.net(a), self.net(b)
model = Net()
batch = (torch.randn(8, 4), torch.randn(8, 4)), torch.zeros(8)
def loss(output, target):
    value = nn.functional.mse_loss(*output)
    for z in output:
        z = torch.cat(Gather.apply(z)) if dist.is_initialized() else z
        value = value - z.var(0).sqrt().mean()
    return value
