# expect: collective/no-autograd verified
# shows: Gather whose own backward keeps the own rows. What others say of the own rows
#   does not come home.

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
        ctx.rows = len(x)
        parts = torch.empty(world() * len(x), *x.shape[1:], dtype=x.dtype)
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts
    @staticmethod
    def backward(ctx, grad):
        return grad.narrow(0, rank() * ctx.rows, ctx.rows)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.zeros(8)
def loss(output, target):
    if dist.is_initialized():
        output = Gather.apply(output)
    z = nn.functional.normalize(output, dim=1)
    return (z @ z.t()).logsumexp(1).mean()
