# expect: ddp/multi-backward verified
# shows: Two backwards beside a gradient penalty. The penalty's autograd.grad is of the
#   input: backward goes through it.

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
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = loss(model(x), y)
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    value.backward()
    slope.square().mean().backward()
    optimizer.step()
