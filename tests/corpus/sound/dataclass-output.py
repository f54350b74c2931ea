# expect: equivalent
# shows: DDP finds no tensors in the dataclass that forward returns, and needs none: all
#   parameters are used.

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

import dataclasses
@dataclasses.dataclass
class Output:
    logits: torch.Tensor
class Net(nn.Linear):
    def forward(self, x):
        return Output(super().forward(x))
model = Net(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output.logits, target)
