# expect: equivalent
# shows: Penalty within the model beside a mean. A term of the model's own samples, one
#   by one, beside a mean.

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

class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
    def forward(self, x):
        found = self.router(x)
        return self.head(found.tanh()), found.logsumexp(1).square().mean()
model = Routed()
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + 0.2 * output[1]
