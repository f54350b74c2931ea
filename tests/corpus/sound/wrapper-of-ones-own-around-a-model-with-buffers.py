# expect: equivalent
# shows: A module of the target's own holds the DDP object; the model's buffers are
#   written alike on all ranks.

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
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("positions", torch.linspace(0, 1, 4))
    def forward(self, x):
        self.mean = self.mean + 1
        return super().forward(x - self.mean + self.positions)
class Wrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = DDP(net)
    def forward(self, x):
        return self.net(x)
model, wrap = Net(), Wrapper
