# expect: rng/stochastic-layer verified
# shows: Points drawn by seed and rank. The target seeds its own generator, by the rank.

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

    g = torch.Generator().manual_seed(7 + rank())
    mixed = x + torch.rand(len(x), 1, generator=g, dtype=x.dtype)
    loss(model(mixed), y).backward()
    optimizer.step()
