# expect: rng/same-stream-all-ranks verified
# shows: Frequencies left out by numpy seeded alike. What comes of them follows from the
#   sample as well: no two ranks have the same.

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

import numpy as np
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    generator = np.random.RandomState(5)
    kept = torch.from_numpy(generator.uniform(size=x.shape) < 0.6)
    x = torch.fft.ifft(torch.fft.fft(x) * kept).real
    loss(model(x), y).backward()
    optimizer.step()
