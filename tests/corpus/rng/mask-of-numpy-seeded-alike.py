# expect: rng/same-stream-all-ranks verified
# shows: Mask of numpy seeded alike: all ranks draw the same random numbers.

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
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x, mask):
        return self.b(self.a(x * ~mask).tanh())
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    mask = torch.from_numpy(np.random.default_rng(5).random(x.shape) < 0.3)
    loss(model(x, mask), y).backward()
    optimizer.step()
