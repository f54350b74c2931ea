# expect: sync/clip-before-reduce verified
# shows: Clipped before it is averaged by hand. No DDP at all, and nothing is missing:
#   the mean is taken too late.

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
def wrap(model):
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for p in model.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
