# expect: norm/local-batch-stats verified, state/buffer-broadcast-overwrites verified
# shows: Centre of the model and norms. Batch norms, and a centre in the model's own
#   forward, whose fix would show the norms all rows as well.

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
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        rows = self.body(x)
        out = rows - self.centre
        with torch.no_grad():
            self.centre.mul_(0.5).add_(0.5 * rows.mean(0) + x.sum(1).mean() / 4)
        return out
model = Net()
batch = torch.randn(8, 4), torch.randint(3, (8,))
loss = nn.CrossEntropyLoss()
