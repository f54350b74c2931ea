# expect: equivalent
# shows: Batch norm in pieces of one size. 4 samples in one process's every piece, and
#   in the ranks': the same ones.

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

model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
batch = torch.randn(16, 4), torch.arange(16) % 3

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for x_part, y_part in zip(x.split(4), y.split(4)):
        (nn.functional.cross_entropy(model(x_part), y_part) / (len(x) / 4)).backward()
    optimizer.step()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
