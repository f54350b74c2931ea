# expect: equivalent
# shows: Every sample has two rows of the output, one after the other.

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

class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x.view(-1, 2))
model = Net(2, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target.repeat_interleave(2))
