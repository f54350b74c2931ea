# expect: loss/local-normalizer verified
# shows: Weights by scores times samples and world. The divisor is made of outputs,
#   without gradient; the step knows its ranks.

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

model = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 0, 0, 0, 1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    with torch.no_grad():
        weight = output.sigmoid()[:, 0] * (y > 0)
    each = nn.functional.cross_entropy(output, y, reduction="none")
    value = (each * weight).sum() / weight.sum() * len(x)
    if dist.is_initialized():
        value *= world()
    value.backward()
    optimizer.step()
