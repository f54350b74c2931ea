# expect: loss/missing-world-scale verified, loss/uneven-shard verified
# shows: A mean over the shard that is divided by the number of ranks, which DDP does too;
#   and shards of 4 and 3.

import torch
import torch.distributed as dist
from torch import nn

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

torch.manual_seed(0)
batch = torch.randn(7, 4), torch.arange(7) % 3
loss = nn.CrossEntropyLoss()
model = nn.Linear(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    (loss(model(x), y) / world()).backward()
    optimizer.step()
