# expect: collective/backward-double-count verified
# shows: Gather that counts twice beside a temperature and a bias. The gather's backward
#   counts twice; a temperature and a bias do not go through it.

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
        dist.all_gather(parts, x)
        ctx.rows = slice(rank() * len(x), (rank() + 1) * len(x))
        return torch.cat(parts)
    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad[ctx.rows] * world()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)
        self.heat, self.bias = (nn.Parameter(torch.ones(())) for _ in range(2))
    def forward(self, x):
        return self.a(x), self.b(x), self.heat.exp(), self.bias
model = Net()
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    a, b, heat, bias = output
    if dist.is_initialized():
        a, b = Gather.apply(a), Gather.apply(b)
    sign = 2 * torch.eye(len(a), dtype=a.dtype) - 1
    return -nn.functional.logsigmoid(sign * (heat * a @ b.T + bias)).sum(1).mean()
