# expect: rng/stochastic-layer verified
# shows: Draws in a loop over samples. The k-th draw of one number stands for another
#   sample on every rank.

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
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    rows = [row.flip(0) if torch.rand(1).item() < 0.5 else row for row in x]
    loss(model(torch.stack(rows)), y).backward()
    optimizer.step()
