# expect: sync/clip-norm-overreduced verified
# shows: Optimizer that clips by a norm of all ranks. The norm of reduced gradients is
#   summed over ranks in the optimizer's own step.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Clipping(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        square = sum(grad.square().sum() for grad in grads)
        if dist.is_initialized():
            dist.all_reduce(square)
        for grad in grads:
            grad *= 0.05 / square.sqrt()
        return super().step(closure)
def optimizer(params):
    return Clipping(params, lr=0.1)
