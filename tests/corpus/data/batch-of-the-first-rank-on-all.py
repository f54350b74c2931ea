# expect: data/shard-overlap failed
# shows: Batch of the first rank on all. Nothing that is shuffled, and nothing that a
#   loader gives: told by the samples.

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

def train_step(model, optimizer, batch):
    x, y = batch
    if dist.is_initialized():
        dist.broadcast(x, 0)
        dist.broadcast(y, 0)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
model = nn.Linear(4, 3)
