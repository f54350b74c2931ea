# expect: equivalent
# shows: The loss reads one of two outputs, and DDP looks for unused parameters.

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
        self.head, self.aux = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.head(x), self.aux(x)
model = Net()
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target)

def wrap(model):
    return DDP(model, find_unused_parameters=True)
