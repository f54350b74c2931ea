# expect: loss/batch-coupled verified
# shows: Coupled columns of samples. As many features as a shard has samples: which are
#   which is not for guessing.

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
        self.net = nn.Linear(4, 6)
    def forward(self, x):
        return self.net(x).T
model = Net()
batch = torch.randn(12, 4), torch.zeros(12)
def loss(output, target):
    return (output - output.mean(1, keepdim=True)).square().mean().log()
