# expect: loss/local-normalizer verified
# shows: Loss of a module around the model. What is wrapped is a module that holds the
#   model, and computes the loss.

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

class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x, y):
        output = self.net(x)
        value = nn.functional.cross_entropy(output, y, reduction="none")
        return output, (value * (y > 0)).sum() / (y > 0).sum()
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def wrap(model):
    return DDP(WithLoss(model))
def train_step(model, optimizer, batch):
    whole = model if isinstance(model, DDP) else WithLoss(model)
    optimizer.zero_grad()
    whole(*batch)[1].backward()
    optimizer.step()
