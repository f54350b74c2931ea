# expect: loss/batch-coupled verified
# shows: One of two views that a step gathers. With the samples of all ranks the step
#   would gather them once more.

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

class Views(nn.Linear):
    def forward(self, a, b):
        a, b = super().forward(a), super().forward(b)
        centre = dnn.all_reduce(a.mean(0)) / world() if world() > 1 else a.mean(0)
        return a - centre, b
model = Views(4, 3)
x = torch.randn(8, 4) * torch.linspace(0.2, 2, 8)[:, None]
batch = (x, x + 0.3 * torch.randn(8, 4)), torch.zeros(8)
def gather(z):
    return torch.cat(dnn.all_gather(z)) if dist.is_initialized() else z
def spread(z):
    return torch.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()
def train_step(model, optimizer, batch):
    a, b = model(*batch[0])
    optimizer.zero_grad()
    ((a - b).square().mean() + spread(gather(a)) + spread(b)).backward()
    optimizer.step()
