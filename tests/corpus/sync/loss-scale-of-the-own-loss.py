# expect: sync/scaler-desync unverified
# shows: Loss scale of the own loss. The norm that gradients are clipped to hides the
#   factor between the ranks'. No power of two: a scale that brings each rank's loss to
#   one size.

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

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = loss(model(x), y)
    scale = 64 / value.detach()
    (value * scale).backward()
    for p in model.parameters():
        p.grad.div_(scale)
    optimizer.step()
