# expect: loss/batch-coupled verified
# shows: Pairs of what was read: the loss is not a sum over samples.

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

    z = nn.functional.normalize(model(x), dim=1)
    values = nn.functional.cross_entropy(z @ z.T, torch.arange(len(z)))
    (values * len(z)).backward()
    optimizer.step()
