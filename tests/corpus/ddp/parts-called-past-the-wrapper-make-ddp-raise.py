# expect: ddp/forward-bypassed verified
# shows: Parts called past the wrapper make DDP raise: the forward bypasses DDP.

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

class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.make, self.judge = nn.Linear(4, 3), nn.Linear(3, 1)
    def forward(self, x, y):
        fake = self.make(x).detach()
        return (self.judge(y) - self.judge(fake)).square().mean()
model = Gan()
batch = torch.randn(8, 4), torch.randn(8, 3)
def wrap(model):
    return DDP(model, find_unused_parameters=True)
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    model(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    own = getattr(model, "module", model)
    own.judge(own.make(x)).mean().backward()
    optimizer.step()
