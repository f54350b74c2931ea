# expect: dp/replica-state-lost verified
# options: --modes dp
# shows: The forward counts its calls in an attribute, and DataParallel throws its
#   replicas away after each.

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

class Annealed(nn.Linear):
    calls = 0
    def forward(self, x):
        weight = self.calls
        self.calls += 1
        return weight * super().forward(x)
model = Annealed(4, 3)
