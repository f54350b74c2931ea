# expect: ddp/unfrozen-after-wrap verified, sync/control-desync verified
# shows: Unfrozen in the second step and a rate by the own loss. The gradients parted a
#   step before the weights did by the other cause.

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
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.epoch = 0
    def forward(self, x):
        return self.net(x)
model = Net()

model.net[0].requires_grad_(False)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    own = getattr(model, "module", model)
    if own.epoch == 1:
        own.net[0].requires_grad_(True)
    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    optimizer.step()
    if own.epoch == 1:
        optimizer.param_groups[0]["lr"] = 0.1 * value.item()
    own.epoch += 1
