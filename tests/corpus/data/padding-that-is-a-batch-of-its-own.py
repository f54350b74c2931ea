# expect: data/sampler-padding verified
# shows: Padding that is a batch of its own. The last batch of one rank holds nothing
#   but a repeat.

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

few = TensorDataset(rows[:17], rows[:17].sum(1, keepdim=True))
def train_step(model, optimizer, batch):
    sampler = SequentialSampler(few)
    if dist.is_initialized():
        sampler = DistributedSampler(few, shuffle=False)
    for x, y in DataLoader(few, 8 // world(), sampler=sampler):
        train_on(model, optimizer, x, y)
