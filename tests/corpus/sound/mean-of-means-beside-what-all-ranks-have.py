# expect: equivalent
# shows: One term is a mean of the ranks' means, another is computed from the rows of
#   all ranks: both carry gradients.

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

import torch.distributed as dist
from torch.distributed.nn.functional import all_gather, all_reduce
class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        total = value.clone()
        dist.all_reduce(total)
        return total
    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad
class TwoViews(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    def forward(self, x):
        return self.body(x), self.body(x.flip(1))
model = TwoViews()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2.0, 8)[:, None], torch.zeros(8)
def loss(output, target):
    near = nn.functional.mse_loss(*output)
    output = torch.cat(output, 1)
    if dist.is_initialized():
        near = all_reduce(near) / dist.get_world_size()
        output = torch.cat(all_gather(output))
    apart = output - output.mean(0)
    between = apart.T @ apart / (len(output) - 1)
    return 3 * near + between.triu(1).square().sum()
