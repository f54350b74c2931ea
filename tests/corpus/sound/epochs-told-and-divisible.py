# expect: equivalent
# shows: The sampler is told each epoch, and its samples divide evenly among ranks and
#   batches.

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
    sampler = DistributedSampler(data, world(), rank())
    sampler.set_epoch(len(epochs))
    epochs.append(1)
    for x, y in DataLoader(data, 8 // world(), sampler=sampler):
        train_on(model, optimizer, x, y)
