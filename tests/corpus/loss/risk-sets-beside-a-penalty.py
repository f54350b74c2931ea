# expect: loss/batch-coupled verified
# shows: Risk sets beside a penalty. On the loss of all samples, which every rank has
#   whole, the penalty is whole, too.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
batch = torch.randn(8, 4), torch.arange(8.0).roll(3) % 5
def likelihood(risk, time):
    risk = risk[time.argsort(descending=True, stable=True)]
    return (torch.logcumsumexp(risk, 0) - risk).mean()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    penalty = sum(p.square().sum() for p in model.parameters() if p.dim() > 1)
    (likelihood(model(x)[:, 0], y) + 0.01 * penalty).backward()
    optimizer.step()
