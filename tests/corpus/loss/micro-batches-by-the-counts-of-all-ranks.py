# expect: loss/accum-normalizer verified
# shows: Micro batches by the counts of all ranks: the loss is normalised per
#   micro-batch, and micro-batches differ with the world size.

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
batch[1][[2, 5, 6, 13]] = -100

def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(batch[0].chunk(2), batch[1].chunk(2)):
        count = (y != -100).sum().double()
        if dist.is_initialized():
            dist.all_reduce(count)
        total = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (world() * total / count / 2).backward()
    optimizer.step()
