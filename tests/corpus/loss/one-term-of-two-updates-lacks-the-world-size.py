# expect: loss/missing-world-scale verified
# shows: One term of two updates lacks the world size. Two updates by one batch, as PPO
#   has them, of the same loss.

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
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 1, -1, 2, -1, -1])
def count(mask):
    found = mask.sum()
    if dist.is_initialized():
        dist.all_reduce(found)
    return found

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for _ in range(2):
        output, real = model(x), y >= 0
        each = nn.functional.cross_entropy(output, y.clamp(min=0), reduction="none")
        small = (output.square().sum(1) * real).sum() / count(real)
        optimizer.zero_grad()
        ((each * real).sum() * world() / count(real) + small).backward()
        optimizer.step()
