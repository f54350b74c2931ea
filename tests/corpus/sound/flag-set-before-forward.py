# expect: equivalent
# shows: The step sets DDP's flag for the reduction by hand, before the forward that
#   belongs to it, as no_sync does.

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

    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        if isinstance(model, DDP):
            model.require_backward_grad_sync = i == 1
        (nn.functional.cross_entropy(model(a), b) / 2).backward()
    optimizer.step()
