# expect: ddp/forward-bypassed verified
# shows: Backward inside the forward. A step that is called through DDP's forward, and
#   goes backward by itself.

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

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x, y):
        value = nn.functional.cross_entropy(self.net(x), y)
        value.backward()
        return value.detach()
model = Module()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    model(x, y)
    optimizer.step()
