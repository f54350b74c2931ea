# expect: state/buffer-broadcast-overwrites verified
# shows: Running statistics updated before they are used. Statistics of the shard are in
#   what it returns, and it is what it keeps.

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

class Normalizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(4))
        self.register_buffer("count", torch.tensor(3.0))
    def forward(self, x):
        if self.training:
            self.total += x.square().sum(0)
            self.count += len(x)
        return x * (self.count / self.total).sqrt()
model = nn.Sequential(Normalizer(), nn.Linear(4, 3))
