# expect: graph/unused-parameter verified
# shows: Tied in the step. The tied weight takes the place of one that DDP waits for.

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

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    net = getattr(model, "module", model)
    net[2].weight = net[0].weight
    loss(model(x), y).backward()
    optimizer.step()
