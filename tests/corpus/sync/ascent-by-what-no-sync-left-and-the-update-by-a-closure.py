# expect: sync/no-sync-scope verified
# shows: Ascent by what no sync left and the update by a closure. The step towards
#   higher loss takes what is local; a closure makes the other one.

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
model = nn.Linear(4, 3)
class Sharpness(torch.optim.SGD):
    def step(self, closure):
        moves = [(p, 0.2 * p.grad) for p in self.param_groups[0]["params"]]
        with torch.no_grad():
            for p, by in moves:
                p.add_(by)
        self.zero_grad()
        closure()
        with torch.no_grad():
            for p, by in moves:
                p.sub_(by)
        super().step()
def optimizer(params):
    return Sharpness(params, lr=0.1)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    def closure():
        with torch.enable_grad():
            nn.functional.cross_entropy(model(x), y).backward()
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        closure()
    optimizer.step(closure)
