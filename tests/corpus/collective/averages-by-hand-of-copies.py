# expect: collective/layout verified
# shows: Averages by hand of copies. Of a gradient in channels_last reshape makes a
#   copy, and that is averaged.

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

model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2))
model = model.to(memory_format=torch.channels_last)
x = torch.randn(8, 2, 4, 4).contiguous(memory_format=torch.channels_last)
batch = x, torch.arange(8) % 3
def wrap(model):
    model.is_wrapped = True
    return model
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(1), y).backward()
    for p in model.parameters():
        if hasattr(model, "is_wrapped"):
            flat = p.grad.reshape(-1)
            dist.all_reduce(flat)
            flat /= world()
    optimizer.step()
