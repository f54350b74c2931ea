# expect: equivalent
# shows: Head left out in no sync. DDP waits for nothing there: what the first backward
#   leaves out is not missed.

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
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 1)
    def forward(self, x, task):
        h = self.body(x).tanh()
        return self.a(h) if task == "class" else self.b(h).flatten()
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    with getattr(model, "no_sync", contextlib.nullcontext)():
        loss(model(x, "class"), y).backward()
    (model(x, "value").square().mean() + loss(model(x, "class"), y)).backward()
    optimizer.step()
import contextlib
