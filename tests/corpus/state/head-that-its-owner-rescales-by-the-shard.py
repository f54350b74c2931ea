# expect: state/forward-writes-parameter verified
# shows: Head that its owner rescales by the shard. A part of the model is written by
#   what is around it: it mixes nothing itself.

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

class Rescaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(()))
    @torch.no_grad()
    def rescale(self, x):
        before = self.scale.clone()
        self.scale.lerp_(x.square().mean(), 0.5)
        self.head.weight.mul_(before / self.scale)
    def forward(self, x):
        self.rescale(x)
        return self.head(self.body(x).tanh()) * self.scale
model = Rescaled()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2, 8)[:, None], torch.arange(8) % 3
