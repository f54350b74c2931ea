# expect: ddp/rank-local-weights verified
# shows: Head drawn anew in the second step. Drawn in the second step for the first
#   time, by every rank for itself.

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

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    net = getattr(model, "module", model)
    net.steps = getattr(net, "steps", 0) + 1
    if net.steps == 2:
        net[2].reset_parameters()
    loss(model(x), y).backward()
    optimizer.step()
