# expect: state/buffer-broadcast-overwrites verified
# shows: Scales of the shards terms in a module of the loss: a buffer accumulates
#   statistics of the local shard.

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

class Balance(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(2))
    def forward(self, terms):
        terms = torch.stack(terms)
        value = (terms / self.scale.clone()).sum()
        self.scale.lerp_(terms.detach(), 0.5)
        return value
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.balance = nn.Linear(4, 3), Balance()
    def forward(self, x):
        out = self.body(x)
        return self.balance([out.square().mean(), (out - 1).abs().mean()])
def model():
    torch.manual_seed(0)
    return Net()
batch = torch.randn(8, 4) * torch.linspace(0.3, 2.0, 8)[:, None], torch.zeros(8)
def loss(output, target):
    return output
