# expect: equivalent
# shows: Some samples are left out, and the sum is divided by the count of all ranks and
#   multiplied by the world size.

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

read = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1]).bool()
batch = torch.randn(16, 4), (torch.arange(16) % 3, read)

def train_step(model, optimizer, batch):
    x, (y, read) = batch
    x, y = x[read], y[read]
    optimizer.zero_grad()

    count = torch.tensor(float(len(x)), dtype=x.dtype)
    if dist.is_initialized():
        dist.all_reduce(count)
    total = nn.functional.cross_entropy(model(x), y, reduction="sum")
    (world() * total / count).backward()
    optimizer.step()
