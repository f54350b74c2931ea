# expect: dp/replica-parameters-empty verified
# options: --modes dp
# shows: The forward asks whether something is a Parameter, and in replicas of
#   DataParallel it is a plain tensor.

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

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale = nn.Linear(4, 3), nn.Parameter(torch.full((3,), 0.2))
    def forward(self, x):
        y = self.body(x)
        return y * self.scale if isinstance(self.scale, nn.Parameter) else y
model = Scaled()
