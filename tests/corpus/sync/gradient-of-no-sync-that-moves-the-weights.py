# expect: sync/no-sync-scope verified
# shows: Gradient of no sync that moves the weights. The first gradient, of the rank's
#   own shard, moves the weights (SAM).

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
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    import contextlib
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        nn.functional.cross_entropy(model(x), y).backward()
    moves = [0.5 * p.grad for p in model.parameters()]
    for sign in (1, -1):
        if sign == -1:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves):
                p += sign * move
    optimizer.step()
