# expect: graph/rank-dependent-branch verified
# shows: Depth by the largest row of the shard before a reduced log. DDP's own
#   reduction, for which a rank waits, meets the one of the log.

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
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        deep = (x.abs().amax(1) > 5).any()
        return self.first(x) + self.second(x) if deep else self.first(x)
model = Net()
batch = torch.arange(32.0).view(8, 4) / 5, torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    logged = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(logged)
    optimizer.step()
