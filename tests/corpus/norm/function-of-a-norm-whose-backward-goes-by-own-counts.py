# expect: norm/syncbn-implementation verified
# shows: Function of a norm whose backward goes by own counts. No module has it: the
#   model calls the function itself. The counts differ by rank.

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

def reduced(t):
    t = t.clone()
    if dist.is_initialized():
        dist.all_reduce(t)
    return t
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        m = mask.to(x)[:, None]
        own, total = m.sum(), reduced(m.sum())
        centred = (x - reduced((x * m).sum(0)) / total) * m
        scale = (reduced(centred.square().sum(0)) / total + 1e-5).rsqrt()
        ctx.save_for_backward(centred * scale, m, scale, own)
        return centred * scale
    @staticmethod
    def backward(ctx, grad):
        y, m, scale, own = ctx.saved_tensors
        grad = grad * m
        shift = reduced(grad.sum(0) / own) / world()
        slope = reduced((grad * y).sum(0) / own) / world()
        return (grad - shift - y * slope) * m * scale, None
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x, mask):
        return self.b(Norm.apply(self.a(x), mask).sin())
model = Net()
mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 1])
x = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None]
batch = (x, mask), torch.arange(8) % 3
