# expect: state/forward-writes-parameter verified
# shows: Rows that begin anew by activity in the shard. Which rows of a layer begin anew
#   is decided by what was active in the shard.

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
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        self.hidden = self.body(x).tanh()
        return self.head(self.hidden)
model = Net()
batch = torch.randn(8, 4) * torch.linspace(0.5, 2, 8)[:, None], batch[1]

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    own = getattr(model, "module", model)
    loss(model(x), y).backward()
    optimizer.step()
    active = own.hidden.detach().abs().sum(0)
    with torch.no_grad():
        own.body.weight[active < active.median()] *= 0.5
