# expect: state/forward-writes-parameter verified
# shows: Weights rescaled by the moments of a shard. Written by the step before its
#   forward: the last layer and what it is scaled by.

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

class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("mean", torch.zeros(1))
    @torch.no_grad()
    def update(self, y):
        before = self.mean.clone()
        self.mean.lerp_(y.mean(0, keepdim=True), 0.2)
        self.bias.add_(before - self.mean)
        return y - self.mean
model = Scaled()
batch = torch.randn(8, 4), torch.linspace(-3, 5, 8)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    y = getattr(model, "module", model).update(y)
    (model(x).squeeze(1) - y).square().mean().backward()
    optimizer.step()
