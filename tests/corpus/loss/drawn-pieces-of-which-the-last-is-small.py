# expect: loss/accum-normalizer verified
# shows: Drawn pieces of which the last is small. 6, 6 and 4 samples in one process, 6
#   and 2 on a rank: which, is drawn.

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

    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    parts = order.split(6)
    for rows in parts:
        (nn.functional.cross_entropy(model(x[rows]), y[rows]) / len(parts)).backward()
    optimizer.step()
