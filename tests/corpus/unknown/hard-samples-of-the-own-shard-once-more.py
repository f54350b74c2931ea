# expect: unknown unverified
# shows: Hard samples of the own shard once more. No sample is another rank's: each rank
#   chooses among its own.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    with torch.no_grad():
        each = nn.functional.cross_entropy(getattr(model, "module", model)(x), y,
                                           reduction="none")
    hard = each.argsort()[len(x) // 2:]
    optimizer.zero_grad()
    loss(model(torch.cat([x, x[hard]])), torch.cat([y, y[hard]])).backward()
    optimizer.step()
