# expect: collective/backward-double-count verified
# shows: Weight gradient summed in its own backward. A layer that exchanges its weight's
#   gradient itself, for DDP to do it once more.

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

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        of_weight = grad.T @ x
        if dist.is_initialized():
            dist.all_reduce(of_weight)
        return grad @ weight, of_weight
class Layer(nn.Linear):
    def forward(self, x):
        return Exchange.apply(x, self.weight) + self.bias
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), Layer(6, 3))
