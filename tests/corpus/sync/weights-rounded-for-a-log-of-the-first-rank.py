# expect: sync/control-desync verified
# shows: Weights rounded for a log of the first rank. One process does not do it, nor do
#   the other ranks.

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

    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if dist.is_initialized() and dist.get_rank() == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.mul(64).round() / 64)
