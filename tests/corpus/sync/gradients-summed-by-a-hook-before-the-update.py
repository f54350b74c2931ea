# expect: sync/comm-hook-semantics verified
# shows: Gradients summed by a hook before the update: a communication hook, or a step
#   that reduces by itself, does not return the mean.

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

def reduce(optimizer, args, kwargs):
    if dist.is_initialized():
        for group in optimizer.param_groups:
            for p in group["params"]:
                dist.all_reduce(p.grad)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.1)
    made.register_step_pre_hook(reduce)
    return made
