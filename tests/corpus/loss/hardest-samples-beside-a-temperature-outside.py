# expect: loss/batch-coupled verified, ddp/wrapper-missing unverified
# shows: Hardest samples beside a temperature outside. With the loss of all samples on
#   every rank the temperature gets it all, too.

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
        self.net = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, x, y):
        each = nn.functional.cross_entropy(
            self.net(x) * self.scale, y, reduction="none"
        )
        return each.topk(len(x) // 2).values.mean()
def model():
    torch.manual_seed(0)
    return Net()
batch = (torch.randn(12, 4), torch.arange(12) % 3), torch.zeros(12)
def loss(output, target):
    return output
def wrap(model):
    model.net = DDP(model.net)
    return model
