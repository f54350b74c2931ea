# expect: ddp/frozen-after-wrap verified
# shows: Frozen for good in the second step. Frozen for good from the second step on,
#   and not in turn.

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

steps = []
def model():
    steps.clear()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
wrap = lambda model: DDP(model)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if len(steps) == 1:
        next(model.parameters()).requires_grad_(False)
    steps.append(None)
    loss(model(x), y).backward()
    optimizer.step()
