# expect: sync/control-desync verified
# shows: Clipped before a metric is reduced. A metric is reduced after a clipping:
#   neither is the cause.

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

class Own(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p -= 0.1 * (1 + 0.1 * rank()) * p.grad
model = nn.Linear(4, 3)
def optimizer(params):
    return Own(params, lr=0.1)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = nn.functional.cross_entropy(model(x), y)
    value.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    if dist.is_initialized():
        dist.all_reduce(value.detach().clone())
    optimizer.step()
