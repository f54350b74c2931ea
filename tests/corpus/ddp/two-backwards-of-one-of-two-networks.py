# expect: ddp/multi-backward verified
# shows: Two backwards of one of two networks. Two objects, and two backwards of one of
#   them.

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

    value = model.critic(x)
    value.square().mean().backward(retain_graph=True)
    (value**4).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss(model.actor(x), y).backward()
    optimizer.step()
