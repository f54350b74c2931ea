# expect: state/ema-teacher-divergence verified
# shows: Average by names that a wrapper changes: untrained weights are updated
#   differently on the ranks.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def bare(model):
    return getattr(model, "module", model)
class Average:
    def __init__(self, model):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            if name in self.shadow:
                self.shadow[name].lerp_(p, 0.4)
    def forward(self, x, model):
        return torch.func.functional_call(model, self.shadow, (x,))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if not hasattr(optimizer, "average"):
        optimizer.average = Average(bare(model))
    optimizer.zero_grad()
    taught = nn.functional.mse_loss(model(x), optimizer.average.forward(x, bare(model)))
    (nn.functional.cross_entropy(model(x), y) + taught).backward()
    optimizer.step()
    optimizer.average.update(model)
