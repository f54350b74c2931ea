# expect: equivalent
# shows: Every rank trains on the same 16 samples as the single process does: nothing is
#   sharded, and nothing is wrong.

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

import random
import numpy as np
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data import RandomSampler, SequentialSampler, TensorDataset
rows = torch.randn(40, 4, dtype=torch.float64)
data = TensorDataset(rows, rows.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
epochs = []
def train_on(model, optimizer, x, y):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

def train_step(model, optimizer, batch):
    train_on(model, optimizer, *data[:16])
