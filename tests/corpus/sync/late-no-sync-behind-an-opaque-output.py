# expect: sync/no-sync-off-by-one verified
# shows: Late no sync behind an opaque output. The class hides its tensors from DDP;
#   averaging needs no_sync all the same.

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

import contextlib
class Out:
    def __init__(self, logits):
        self.logits = logits
class Net(nn.Linear):
    def forward(self, x):
        return Out(super().forward(x))
model = Net(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = i == 1 and hasattr(model, "no_sync")
        with model.no_sync() if quiet else contextlib.nullcontext():
            (loss(model(a).logits, b) / 2).backward()
    optimizer.step()
