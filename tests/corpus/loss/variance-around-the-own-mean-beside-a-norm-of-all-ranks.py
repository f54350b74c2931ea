# expect: loss/batch-coupled verified, sync/clip-norm-overreduced verified
# shows: Variance around the own mean beside a norm of all ranks. Nothing is gathered,
#   so nothing can be in another order.

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

model = nn.Linear(4, 1)
batch = torch.randn(8, 4) + torch.arange(8)[:, None] / 4, torch.randn(8)
def summed(x):
    return dnn.all_reduce(x) if dist.is_initialized() else x
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    out = model(x)[:, 0]
    count = len(out) * world()
    mean = summed(out.sum()) / count
    variance = summed((out - out.mean()).square().sum()) / count
    ((out - mean) * (variance + 1e-6).rsqrt() - y).square().mean().backward()
    square = sum(p.grad.square().sum() for p in model.parameters())
    if dist.is_initialized():
        dist.all_reduce(square)
    for p in model.parameters():
        p.grad.mul_(0.1 / square.sqrt())
    optimizer.step()
