# expect: loss/batch-coupled verified
# shows: Contrast of views that the step stacks. Here it is the step that makes two
#   blocks, of the batch that it is given.

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
batch = torch.randn(12, 4), torch.randn(12, 4)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    first, second = model(torch.cat([x, y])).chunk(2)
    value = nn.functional.cross_entropy(first @ second.T, torch.arange(len(x)))
    value.backward()
    optimizer.step()
