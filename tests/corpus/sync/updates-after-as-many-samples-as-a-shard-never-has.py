# expect: sync/control-desync verified
# shows: Updates after as many samples as a shard never has. Gradients are kept until so
#   many samples were seen, of the shard's.

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

model = nn.Linear(4, 3)
class Loop:
    seen = 0

def train_step(model, optimizer, batch):
    x, y = batch

    loop = optimizer.__dict__.setdefault("loop", Loop())
    nn.functional.cross_entropy(model(x), y).backward()
    loop.seen += len(x)
    if loop.seen >= 16:
        optimizer.step()
        optimizer.zero_grad()
        loop.seen = 0
