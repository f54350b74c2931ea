# expect: state/buffer-broadcast-overwrites verified, rng/stochastic-layer verified
# shows: Range of the shard with dropout: the forward draws random numbers. A buffer
#   accumulates statistics of the local shard.

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

class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.ones(()))
    def forward(self, x):
        step = self.most / 16
        out = x + ((x / step).round() * step - x).detach()
        self.most.lerp_(x.detach().amax(), 0.1)
        return out
def model():
    torch.manual_seed(0)
    rounded = nn.Sequential(nn.Linear(4, 6), Rounded())
    return nn.Sequential(Rounded(), rounded, nn.Dropout(0.2), nn.Linear(6, 3))
batch = torch.randn(8, 4) * torch.linspace(0.3, 3.0, 8)[:, None], torch.arange(8) % 3
