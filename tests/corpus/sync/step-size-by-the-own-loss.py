# expect: sync/control-desync verified
# shows: Step size by the own loss. The gradients are equal, and so are the numbers of
#   the optimizer.

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

class Polyak(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.2})
    def note(self, value):
        self.noted = value.detach()
    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        rate = 0.1 * self.noted / (1 + sum(p.grad.square().sum() for p in params))
        for p in params:
            p.sub_(rate * p.grad)
model = nn.Linear(4, 3)
def optimizer(params):
    return Polyak(params)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    optimizer.note(value)
    optimizer.step()
