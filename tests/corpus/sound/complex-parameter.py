# expect: equivalent
# needs: torch 2.9: gloo of older versions knows no complex numbers
# shows: A parameter is complex, and DDP reduces it as pairs of real numbers.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs()
model = Net()
