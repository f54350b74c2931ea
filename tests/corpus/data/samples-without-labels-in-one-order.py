# expect: data/sampler-epoch verified
# shows: Samples without labels in one order. The samples with labels are right, and in
#   every step others.

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

from torch.utils.data import DistributedSampler
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
pool = torch.randn(32, 4)
class Unlabelled:
    def __init__(self):
        seat = (world(), rank())
        self.sampler = DistributedSampler(range(32), *seat, shuffle=True, seed=3)
        self.epoch = 0
    def next(self, n):
        if not dist.is_initialized():
            self.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return pool[list(self.sampler)[:n]]
def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    if not hasattr(optimizer, "unlabelled"):
        optimizer.unlabelled = Unlabelled()
    u = optimizer.unlabelled.next(len(x)).to(x)
    known, free = model(torch.cat([x, u])).split(len(x))
    optimizer.zero_grad()
    fit = nn.functional.cross_entropy(known, y)
    guess = (2 * free.detach()).softmax(1)
    (fit + nn.functional.cross_entropy(free, guess)).backward()
    optimizer.step()
