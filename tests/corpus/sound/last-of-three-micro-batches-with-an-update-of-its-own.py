# expect: equivalent
# shows: There is an update after the second micro-batch and after the third, and both
#   are synchronised.

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
batch = torch.randn(8, 3, 4), torch.arange(24).view(8, 3) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for i in range(3):
        last = i in (1, 2)
        held = not last and isinstance(model, DDP)
        with model.no_sync() if held else contextlib.nullcontext():
            loss(model(x[:, i]), y[:, i]).backward()
        if i in (1, 2):
            optimizer.step()
            optimizer.zero_grad()
