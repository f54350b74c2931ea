# expect: sync/static-graph-no-sync verified
# shows: No sync on a graph that has to be static. A checkpointed layer that is called
#   twice does not train without static_graph.

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

from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        x = self.start(x)
        for _ in range(2):
            x = checkpoint(self.layer, x, use_reentrant=True).tanh()
        return x
model = Net()
batch = torch.randn(16, 4), torch.arange(16) % 3

def wrap(model):
    return nn.parallel.DistributedDataParallel(model, static_graph=True)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    from contextlib import nullcontext
    for i, (x_part, y_part) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = not i and hasattr(model, "no_sync")
        with model.no_sync() if quiet else nullcontext():
            (nn.functional.cross_entropy(model(x_part), y_part) / 2).backward()
    optimizer.step()
