# expect: sync/control-desync verified
# shows: Momentum restored on the first rank. What is drawn is the same on all ranks,
#   and used on the first alone.

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
def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)
def restore(optimizer):
    drawn = torch.Generator().manual_seed(3)
    for p in optimizer.param_groups[0]["params"]:
        kept = torch.randn(p.shape, generator=drawn).to(p)
        if rank() == 0:
            optimizer.state[p]["momentum_buffer"] = kept

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    own = getattr(model, "module", model)
    if not hasattr(own, "is_resumed"):
        restore(optimizer)
        own.is_resumed = True
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
