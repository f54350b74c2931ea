# expect: norm/local-batch-stats verified
# shows: Ghost norms that share their running statistics. What is reduced over ranks is
#   logged; inside several containers, each of which was taken for a module that
#   communicates.

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

class Ghost(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(4))
    def forward(self, x):
        ghosts = x.unflatten(0, (2, -1))
        mean, std = ghosts.mean(1, keepdim=True), ghosts.std(1, keepdim=True)
        with torch.no_grad():
            seen = mean.mean((0, 1))
            if dist.is_initialized():
                dist.all_reduce(seen)
            self.running.lerp_(seen / world(), 0.1)
        return ((ghosts - mean) / std).flatten(0, 1)
inner = nn.Sequential(nn.Sequential(nn.Linear(4, 4), Ghost()), nn.Tanh())
model = nn.Sequential(nn.Sequential(inner, nn.Linear(4, 4)), nn.Linear(4, 3))
