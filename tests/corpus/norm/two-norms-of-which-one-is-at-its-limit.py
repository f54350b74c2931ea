# expect: norm/local-batch-stats verified
# shows: Two norms of which one is at its limit. The second limits what it divides by,
#   and twice the input is not the same to it.

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

class Renorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
    def forward(self, x):
        mean, std = x.mean(0), (x.var(0, unbiased=False) + 1e-3).sqrt()
        factor = (std.detach() / self.std).clamp(1 / 1.5, 1.5)
        shift = ((mean.detach() - self.mean) / self.std).clamp(-0.5, 0.5)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
            self.std.lerp_(std, 0.1)
        return (x - mean) / std * factor + shift
model = nn.Sequential(
    nn.Linear(4, 6), Renorm(6), nn.ReLU(), nn.Linear(6, 5), Renorm(5), nn.Linear(5, 3)
)
batch = torch.randn(8, 4) + torch.linspace(-1, 1, 8)[:, None], torch.arange(8) % 3
