# expect: equivalent
# shows: Only the last micro-batch is reduced, and with it the sums of those before.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

import contextlib
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(zip(batch[0].chunk(2), batch[1].chunk(2))):
        held = i == 0 and isinstance(model, DDP)
        with model.no_sync() if held else contextlib.nullcontext():
            (loss(model(x), y) / 2).backward()
    optimizer.step()
