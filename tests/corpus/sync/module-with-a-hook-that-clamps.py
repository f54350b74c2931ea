# expect: sync/clip-before-reduce verified
# shows: Module with a hook that clamps: gradients are clipped before they are reduced.

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
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.head.register_full_backward_hook(
            lambda module, given, _: tuple(g.clamp(-0.01, 0.01) for g in given))
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()
