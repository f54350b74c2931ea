# expect: dp/replica-state-lost verified
# options: --modes dp
# shows: A parameter that is not trained gets other data in forward, as in power
#   iterations; replicas lose them.

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

class Turned(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.turn = nn.Parameter(torch.ones(4), requires_grad=False)
    def forward(self, x):
        y = super().forward(x * self.turn)
        self.turn.data = (self.weight.T @ self.weight @ self.turn).detach()
        return y
model = Turned()
