# expect: sync/clip-norm-overreduced verified
# shows: Norms of an optimizer summed in one table. One number per parameter, of
#   gradients that DDP has averaged.

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

class Scaled(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        params = [p for g in self.param_groups for p in g["params"]]
        table = torch.stack([p.grad.square().sum() for p in params])
        if dist.is_initialized():
            dist.all_reduce(table)
        for p, square in zip(params, table):
            p.sub_(0.1 * p.norm() * p.grad / square.sqrt())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
optimizer = lambda params: Scaled(params, lr=0.1)
