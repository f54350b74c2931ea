# expect: sync/clip-before-reduce verified
# shows: Rates of layers before an exchange by hand. A rate for each layer by its own
#   gradient's norm, before the ranks average.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def wrap(model):
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.mul_(p.norm() / p.grad.norm() if p.ndim > 1 else 0.1)
        for p in model.parameters():
            if world() > 1:
                dist.all_reduce(p.grad)
                p.grad /= world()
    optimizer.step()
