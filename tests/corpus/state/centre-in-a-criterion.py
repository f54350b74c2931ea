# expect: state/buffer-not-synced verified
# shows: Centre in a criterion. The criterion is no part of what DDP wraps, and its
#   buffer a new tensor each time.

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

class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, output, target):
        value = (output - target - self.centre).square().mean()
        self.centre = 0.5 * self.centre + 0.5 * output.detach().mean(0)
        return value
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.randn(8, 3)

criterion = Centred()
loss = lambda output, target: criterion(output, target)
