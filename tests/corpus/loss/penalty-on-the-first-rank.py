# expect: loss/regularizer-scale verified
# shows: Penalty on the first rank. DDP takes the mean: what the first rank alone has
#   counts half.

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
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = nn.functional.cross_entropy(model(x), y)
    if rank() == 0:
        value = value + sum(p.square().sum() for p in model.parameters())
    value.backward()
    optimizer.step()
