# expect: equivalent
# shows: The step gathers the gradients that DDP has averaged and averages them: they
#   are equal, so nothing changes.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def wrap(model):
    return DDP(model)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    nn.functional.cross_entropy(model(x), y).backward()
    if dist.is_initialized():
        for p in model.parameters():
            every = [torch.empty_like(p) for _ in range(world())]
            dist.all_gather(every, p.grad)
            p.grad = sum(every) / world()
    optimizer.step()
