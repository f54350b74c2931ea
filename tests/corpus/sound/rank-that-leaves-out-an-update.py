# expect: equivalent
# shows: Ranks have unequal numbers of updates, and join() divides by those that have
#   data left.

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

import contextlib
model = nn.Linear(4, 3)
slot = torch.tensor([0, 0, 1, 1, 0, 0, -1, -1])
batch = (torch.randn(8, 4), slot), torch.arange(8) % 3
def update(model, optimizer, x, y):
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
def train_step(model, optimizer, batch):
    (x, slot), y = batch
    joined = contextlib.nullcontext()
    if isinstance(model, DDP):
        joined = model.join(divide_by_initial_world_size=False)
    with joined:
        for number in slot[slot >= 0].unique():
            update(model, optimizer, x[slot == number], y[slot == number])
    update(model, optimizer, x[slot == 0], y[slot == 0])
