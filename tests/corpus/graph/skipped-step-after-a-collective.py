# expect: graph/skipped-backward verified
# shows: Skipped step after a collective. Not even a forward: others wait in DDP's own,
#   which exchanges the order of gradients in the second step.

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
    keep = torch.ones(8)
    keep[4:] = float(step == 0)
    return torch.randn(8, 4), (torch.arange(8) % 3, keep)
def train_step(model, optimizer, batch):
    x, (y, keep) = batch
    count = keep.sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    optimizer.zero_grad()
    if not keep.any():
        return
    values = nn.functional.cross_entropy(model(x), y, reduction="none")
    ((values * keep).sum() * world() / count).backward()
    optimizer.step()
