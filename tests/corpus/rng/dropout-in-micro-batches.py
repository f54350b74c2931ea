# expect: rng/stochastic-layer verified
# shows: Dropout in micro batches: the forward draws random numbers.

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
model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for i in range(2):
        part = slice(i * len(x) // 2, (i + 1) * len(x) // 2)
        (loss(model(x[part]), y[part]) / 2).backward()
    optimizer.step()
