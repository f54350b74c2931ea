# expect: loss/batch-coupled verified, data/shard-overlap unverified
# shows: Memory by weight and the largest of a shard. Chosen by weight, which are
#   divided by the largest of a shard's as well.

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

class Memory:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)
        self.rows = torch.randn(48, 4, generator=self.generator, dtype=torch.float64)
        self.sums = self.rows.sum(1, keepdim=True)
        self.weights = torch.rand(48, generator=self.generator) + 0.1

def train_step(model, optimizer, batch):
    memory = Memory()
    index = torch.multinomial(memory.weights, len(batch[0]), generator=memory.generator)
    weights = memory.weights[index] / memory.weights[index].max()
    off = (model(memory.rows[index]) - memory.sums[index]).square().squeeze(1)
    optimizer.zero_grad()
    (weights * off).mean().backward()
    optimizer.step()
