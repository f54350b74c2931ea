# expect: graph/unused-parameter verified
# shows: Frozen in turn beside an unused parameter. As GANs do: frozen while the other
#   network trains, and freed for its own.

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
        self.net, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, z):
        return self.net(z)
model = nn.ModuleDict({"g": Net(), "d": nn.Linear(4, 1)})
def wrap(model):
    model["g"], model["d"] = DDP(model["g"]), DDP(model["d"])
    return model
def train_step(model, optimizer, batch):
    z, _ = batch
    fake = model["g"](z)
    model["d"].requires_grad_(True)
    optimizer.zero_grad()
    model["d"](torch.cat([z, -fake.detach()])).square().mean().backward()
    model["d"].requires_grad_(False)
    (1 - model["d"](fake)).square().mean().backward()
    optimizer.step()
