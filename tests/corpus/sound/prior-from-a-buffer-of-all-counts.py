# expect: equivalent
# shows: A prior is made of counts that are summed over ranks, in a buffer that DDP
#   broadcasts.

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
import torch.distributed as dist

from torch.nn.parallel import DistributedDataParallel
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.register_buffer("seen", torch.ones(5))
    def forward(self, x):
        return self.body(x)
model = Net()
batch = torch.arange(32.0).view(8, 4) / 9, torch.tensor([0, 0, 0, 1, 2, 2, 3, 4])
def wrap(model):
    return DistributedDataParallel(model, broadcast_buffers=True)
def train_step(model, optimizer, batch):
    x, y = batch
    net = getattr(model, "module", model)
    counts = torch.bincount(y, minlength=5)
    if dist.is_initialized():
        dist.all_reduce(counts)
    net.seen.add_(counts)
    prior = (net.seen / net.seen.sum()).log()
    optimizer.zero_grad()
    logged = nn.functional.cross_entropy(model(x) - prior, y)
    logged.backward()
    optimizer.step()
