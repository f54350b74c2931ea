# expect: ddp/autograd-grad verified
# shows: Ascent by autograd grad. Sharpness-aware: a step up along the shard's own
#   gradient, then backward.

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
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    weights = list(model.parameters())
    up = torch.autograd.grad(loss(model(x), y), model.parameters())
    with torch.no_grad():
        torch._foreach_add_(weights, up)
    loss(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(weights, up)
    optimizer.step()
