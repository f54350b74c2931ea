# expect: ddp/unfrozen-after-wrap verified
# shows: Unfrozen in turn where unused ones are looked for. Adapters that are trained in
#   turn: DDP knows those that it was built with.

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
        self.both = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.step = 0
        self.both[1].requires_grad_(False)
    def forward(self, x):
        return self.both[0](x) + self.both[1](x)
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    own = getattr(model, "module", model)
    for i, part in enumerate(own.both):
        part.requires_grad_(i == own.step % 2)
    own.step += 1
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
