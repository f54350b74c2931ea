# expect: norm/local-batch-stats verified, rng/same-stream-all-ranks verified
# shows: Home made norms behind words dropped alike. Behind other words on every rank
#   the buffers differ still where norms see all.

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

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running", torch.zeros(3))
    def forward(self, x):
        mean = x.mean(0)
        self.running.lerp_(mean.detach(), 0.1)
        return (x - mean) / (x.var(0, correction=0) + 1e-5).sqrt()
model = nn.Sequential(nn.Linear(4, 3), Norm(), nn.Tanh(), nn.Linear(3, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    drop = torch.rand(x.shape, generator=torch.Generator().manual_seed(9)) < 0.3
    optimizer.zero_grad()
    loss(model(x.masked_fill(drop, 0.0)), y).backward()
    optimizer.step()
