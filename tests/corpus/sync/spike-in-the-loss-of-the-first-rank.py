# expect: sync/control-desync verified
# shows: Spike in the loss of the first rank. What is kept beside the model differs as
#   well, on all ranks but the first.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
def batch(step):
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(8, 4, generator=g), torch.randn(8, 1, generator=g)
    y[7] *= 200 if step == 1 else 1
    return x, y
def optimizer(parameters):
    made = torch.optim.AdamW(parameters, lr=0.01)
    made.history = []
    return made
def is_spike(optimizer, value):
    history = optimizer.history
    spike = bool(history) and value > 20 * sum(history) / len(history)
    if not spike:
        history.append(value)
    return spike
def agreed(optimizer, value):
    if not dist.is_initialized():
        return is_spike(optimizer, value)
    told = torch.zeros(1, dtype=torch.int32)
    if rank() == 0:
        told.fill_(is_spike(optimizer, value))
    dist.broadcast(told, 0)
    return bool(told)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    optimizer.zero_grad()
    value = nn.functional.mse_loss(model(x), y)
    if not agreed(optimizer, value.item()):
        value.backward()
        optimizer.step()
