# expect: sync/no-sync-off-by-one verified
# shows: Idle wrapper beside a late no sync. Nothing that the idle object holds is
#   trained here.

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

import contextlib
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)
model = Agent()
def wrap(model):
    model.actor, model.critic = DDP(model.actor), DDP(model.critic)
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        quiet = i == 1 and hasattr(model.actor, "no_sync")
        with model.actor.no_sync() if quiet else contextlib.nullcontext():
            (loss(model.actor(a), b) / 2).backward()
    optimizer.step()
