# expect: loss/batch-coupled verified
# shows: Moments of targets that are kept as weights. Moments that the loss is made of
#   are no average that is kept beside it.

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

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.moments = nn.Linear(4, 1), nn.Module()
        self.moments.both = nn.Parameter(torch.ones(2), requires_grad=False)
    def forward(self, x):
        return self.net(x)
model = Critic()
batch = torch.randn(8, 4), torch.arange(8.0)[:, None]

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    moments = getattr(model, "module", model).moments
    values = model(x)
    with torch.no_grad():
        moments.both.lerp_(torch.stack([y.mean(), y.square().mean()]), 0.5)
        mean, square = moments.both
    nn.functional.mse_loss(values, (y - mean) / square.sqrt()).backward()
    optimizer.step()
