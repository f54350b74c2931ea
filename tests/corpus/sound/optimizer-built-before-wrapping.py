# expect: equivalent
# shows: The optimizer is built before DDP, which keeps the parameters: they are the
#   same tensors.

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

def wrap(model):
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DDP(model)
    wrapped.early = early
    return wrapped
def train_step(model, optimizer, batch):
    optimizer = getattr(model, "early", optimizer)
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
