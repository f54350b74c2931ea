# expect: graph/skipped-backward unverified
# shows: Skipped backward before a collective. The rank that goes on meets the
#   collective of its next step.

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
def loss(output, target):
    count = torch.ones(())
    if dist.is_initialized():
        dist.all_reduce(count)
    return nn.functional.cross_entropy(output, target) * world() / count

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = loss(model(x), y)
    if world() == 1 or rank() != 1:
        value.backward()
        optimizer.step()
