# expect: graph/skipped-backward verified
# shows: Micro batches without an object left out. A rank whose samples are all left out
#   begins with an update: no closure's.

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
def batch(step):
    g = torch.Generator().manual_seed(step)
    objects = torch.rand(16, generator=g) > 0.4
    first = 8 - 8 * (step % 2)
    objects[first : first + 8] = False
    return (torch.randn(16, 4, generator=g), objects), torch.arange(16) % 3

def train_step(model, optimizer, batch):
    (x, objects), y = batch
    optimizer.zero_grad()

    for some, has, labels in zip(x.split(4), objects.split(4), y.split(4)):
        if has.any():
            each = nn.functional.cross_entropy(model(some), labels, reduction="none")
            (each[has].sum() / len(x)).backward()
    optimizer.step()
