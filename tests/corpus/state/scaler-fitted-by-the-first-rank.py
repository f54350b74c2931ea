# expect: state/buffer-not-synced verified
# shows: Scaler fitted by the first rank. The step writes the buffers, on rank 0 alone,
#   before the forward that reads them.

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

class Scaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return x - self.mean
model = nn.Sequential(Scaler(), nn.Linear(4, 3))
def wrap(model):
    return DDP(model, broadcast_buffers=False)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    if rank() == 0:
        net[0].mean.fill_(2.0)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
