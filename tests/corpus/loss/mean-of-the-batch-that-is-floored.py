# expect: loss/batch-coupled verified
# shows: Mean of the batch that is floored. As a router's share does it changes by
#   jumps, alike for all samples.

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
        self.mean, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        mean = self.mean(x)
        return self.head(mean), mean.square()
model = Net()
batch = torch.randn(8, 4) * torch.linspace(0.1, 2, 8)[:, None], torch.arange(8) % 3
def loss(output, target):
    logits, kl = output
    floored = kl.mean(0).clamp(min=0.4).sum()
    return nn.functional.cross_entropy(logits, target) + floored
