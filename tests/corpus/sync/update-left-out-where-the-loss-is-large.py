# expect: sync/control-desync verified
# shows: Update left out where the loss is large. What it puts away are gradients that
#   all ranks have.

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

model = nn.Linear(4, 3)
batch = torch.randn(8, 4) * torch.tensor([[1.0]] * 6 + [[9.0]] * 2), torch.arange(8) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = loss(model(x), y)
    value.backward()
    if value.item() > 1.5:
        optimizer.zero_grad()
        return
    optimizer.step()
