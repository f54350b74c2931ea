# expect: loss/local-normalizer verified, state/ema-teacher-divergence verified
# shows: Average by the own samples behind a masked mean: the loss is divided by a
#   data-dependent count of the shard. Untrained weights are updated differently on the
#   ranks.

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

batch = torch.randn(8, 4), torch.tensor([1, -1, 2, 0, -1, -1, -1, 1])
def masked(output, y):
    kept = (y >= 0).to(output.dtype)
    each = nn.functional.cross_entropy(output, y.clamp(min=0), reduction="none")
    return (each * kept).sum() / kept.sum()

class WithAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.average = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    def forward(self, x):
        return self.body(x)
    @torch.no_grad()
    def follow(self, decay):
        for slow, fast in zip(self.average.parameters(), self.body.parameters()):
            slow.lerp_(fast, 1 - decay)
model = WithAverage()
def bare(model):
    return model.module if isinstance(model, DDP) else model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    masked(model(x), y).backward()
    optimizer.step()
    bare(model).follow(0.5 ** (len(x) / 10))
