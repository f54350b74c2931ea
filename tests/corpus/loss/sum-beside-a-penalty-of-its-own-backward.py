# expect: loss/sum-reduction verified
# shows: Sum beside a penalty of its own backward: the loss is a sum over samples, and
#   DDP divides by the world size.

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
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    (0.1 * sum(p.square().sum() for p in model.parameters())).backward()
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()
