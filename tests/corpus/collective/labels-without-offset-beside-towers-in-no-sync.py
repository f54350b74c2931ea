# expect: collective/layout verified, sync/no-sync-scope verified
# shows: Labels without offset beside towers in no sync. Two towers in no_sync, and
#   nothing wrong but where the labels start.

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
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))
    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)
model = Net()
batch = (torch.randn(8, 4), torch.randn(8, 4))
def loss(output, target):
    keys = torch.cat(dnn.all_gather(target)) if dist.is_initialized() else target
    return nn.functional.cross_entropy(6 * output @ keys.T, torch.arange(len(output)))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    with model.no_sync() if dist.is_initialized() else contextlib.nullcontext():
        queries, keys = model(x), model(y)
    loss(queries, keys).backward()
    optimizer.step()
