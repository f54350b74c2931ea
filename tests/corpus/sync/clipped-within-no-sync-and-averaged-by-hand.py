# expect: sync/clip-before-reduce verified
# shows: Clipped within no sync and averaged by hand. All gradients are averaged by
#   hand: no_sync keeps DDP from doing so twice.

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
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    if world() > 1:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world()
    optimizer.step()
