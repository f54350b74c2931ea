# expect: state/buffer-broadcast-overwrites verified
# shows: Spread of the shard beside constants of its name. As large as a mean of raw
#   data is, and of another class: no scale for this one.

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

class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("var", torch.tensor(1e12))
    def forward(self, x):
        return x / self.var.sqrt()
class Score(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("var", torch.ones(()))
    def forward(self, x):
        with torch.no_grad():
            self.var.lerp_(x.var(), 0.1)
        return x
model = nn.Sequential(Constants(), nn.Linear(4, 3), Score())
batch = batch[0] * 1e6, batch[1]
