# expect: forward/batch-coupled verified
# shows: Adversarial direction of one length. The direction that moves the outputs most,
#   of one length for the whole shard.

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
batch = (torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None]), batch[1]

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    direction = (0.1 * x).requires_grad_()
    own = model(x)
    moved = (model(x + direction) - own.detach()).square().sum(1).mean()
    (slope,) = torch.autograd.grad(moved, direction)
    worst = (model(x + slope / slope.norm()) - own.detach()).square().sum(1).mean()
    (nn.functional.cross_entropy(own, y) + worst).backward()
    optimizer.step()
