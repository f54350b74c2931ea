# expect: equivalent
# shows: Membranes of the last micro batch. What a spiking network leaves after its last
#   call: other samples on every rank.

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

class Spiking(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.RNNCell(4, 5), nn.Linear(5, 3)
        self.register_buffer("membrane", torch.zeros(0))
    def forward(self, x):
        self.membrane = torch.zeros(len(x), 5, dtype=x.dtype)
        for _ in range(2):
            self.membrane = self.cell(x, self.membrane)
        return self.head(self.membrane)
model = Spiking()
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    for x, y in zip(*(t.chunk(2) for t in batch)):
        (loss(model(x), y) / 2).backward()
    optimizer.step()
