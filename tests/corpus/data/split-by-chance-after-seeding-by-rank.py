# expect: data/shard-overlap verified
# shows: Split by chance after seeding by rank. The split is the rank's own, and nothing
#   else is drawn: no noise.

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

from torch.utils.data import Subset, TensorDataset, random_split
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def chosen():
    torch.manual_seed(5 + 100 * rank())
    rows = torch.arange(96.0).view(24, 4).sin()
    train, _ = random_split(TensorDataset(rows, torch.arange(24) % 3), [16, 8])
    return Subset(train, range(rank(), 16, world()))
def train_step(model, optimizer, batch):
    x, y = batch
    kept = chosen()
    old, labels = zip(*(kept[i] for i in range(len(x))))
    optimizer.zero_grad()
    x, y = torch.cat([x, torch.stack(old).to(x)]), torch.cat([y, torch.stack(labels)])
    loss(model(x), y).backward()
    optimizer.step()
batch = torch.randn(8, 4), torch.arange(8) % 3
