# expect: equivalent
# shows: Micro-batches have unequal sizes, and each is weighted by its own.

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
batch = torch.randn(16, 4), torch.arange(16) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    pieces = list(zip(x.split(5), y.split(5)))
    for x_part, y_part in pieces:

        (nn.functional.cross_entropy(model(x_part), y_part) * len(x_part) / len(x)).backward()
    optimizer.step()
