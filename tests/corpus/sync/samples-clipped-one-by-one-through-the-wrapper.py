# expect: sync/clip-before-reduce verified
# shows: Samples clipped one by one through the wrapper. As DP-SGD does: a backward for
#   every sample, which DDP averages with the others.

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
batch = torch.randn(8, 4), torch.arange(8) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    parameters = list(model.parameters())
    sums = [torch.zeros_like(p) for p in parameters]
    for i in range(len(x)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        for total, p in zip(sums, parameters):
            total += p.grad
    for total, p in zip(sums, parameters):
        p.grad = total / len(x)
    optimizer.step()
