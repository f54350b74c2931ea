# expect: ddp/param-replaced-after-wrap verified
# shows: Adapter that the first step draws. Numbers are drawn in the first step alone,
#   alike on all ranks.

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

class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, g = base, torch.Generator().manual_seed(4)
        start = torch.randn(2, 4, generator=g).to(base.weight)
        self.down = nn.Parameter(start)
        self.up = nn.Parameter(torch.zeros(6, 2).to(base.weight))
    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        return self.head(self.body(x).tanh())
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    inner = getattr(model, "module", model)
    if not isinstance(inner.body, Adapter):
        inner.body = Adapter(inner.body)
        added = [inner.body.down, inner.body.up]
        optimizer.add_param_group({"params": added})
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
