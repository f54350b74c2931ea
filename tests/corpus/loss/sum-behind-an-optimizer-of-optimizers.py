# expect: loss/sum-reduction verified
# shows: Sum behind an optimizer of optimizers. The optimizer holds none of the model's
#   parameters; those inside do, in turn.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
class Multi(torch.optim.Optimizer):
    def __init__(self, parts):
        super().__init__([{"params": []}], {})
        self.parts = parts
    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad()
    def step(self, closure=None):
        for part in self.parts:
            part.step()
def optimizer(params):
    params = list(params)
    return Multi([torch.optim.Rprop(params[:2]), torch.optim.Rprop(params[2:])])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
    optimizer.zero_grad()
