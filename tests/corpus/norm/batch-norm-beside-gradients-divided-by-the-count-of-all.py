# expect: norm/local-batch-stats verified
# shows: Batch norm beside gradients divided by the count of all. The same by the count
#   of all, which is right: the loss is no cause.

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

model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    count = (y != -100).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    for p in model.parameters():
        p.grad.mul_(world() / count)
    optimizer.step()
