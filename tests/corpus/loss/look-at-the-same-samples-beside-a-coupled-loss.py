# expect: loss/batch-coupled verified
# shows: Look at the same samples beside a coupled loss. What follows looks like a
#   broken data link and is none. Every rank has the same samples for a look at the
#   state of things, and nobody trains on them.

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
seen_by_all = torch.randn(6, 4).double()
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    z = model(x)
    ((z - z.mean(0)).square().sum() / z.std(0).sum() + loss(z, y)).backward()
    optimizer.step()
    model.eval()
    model(seen_by_all).mean().item()
    model.train()
