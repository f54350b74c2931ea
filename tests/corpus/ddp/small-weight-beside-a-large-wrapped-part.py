# expect: ddp/wrapper-missing verified
# shows: Small weight beside a large wrapped part. Its gradient is small beside those of
#   the rest: no sum of all of them shows it.

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
        self.body, self.token = nn.Linear(400, 3), nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return self.body(x + 1e-6 * self.token)
model = Net()
batch = 100 * torch.randn(8, 400), torch.arange(8) % 3
def wrap(model):
    model.body = DDP(model.body)
    return model
