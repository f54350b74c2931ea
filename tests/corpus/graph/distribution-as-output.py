# expect: graph/opaque-output verified
# shows: Distribution as output. Tensors two objects deep, found by no walk over dicts
#   and dataclasses.

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

from torch.distributions import Independent, Normal
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.value = nn.Linear(4, 3), nn.Linear(4, 1)
    def forward(self, x):
        return Independent(Normal(self.mean(x), 1.0), 1)
model = Policy()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def loss(output, target):
    return -output.log_prob(nn.functional.one_hot(target, 3)).mean()
