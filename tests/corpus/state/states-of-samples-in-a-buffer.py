# expect: state/buffer-broadcast-overwrites verified
# shows: States of samples in a buffer. A state for each sample, in buffers: rank 0's
#   samples' reaches all ranks.

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

class Stream(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.RNNCell(4, 5), nn.Linear(5, 3)
        self.register_buffer("h", torch.zeros(1, 5))
    def forward(self, x):
        h = self.h if len(self.h) == len(x) else x.new_zeros(len(x), 5)
        h = self.cell(x, h)
        self.h = h.detach()
        return self.out(h)
model = Stream()
