# expect: equivalent
# shows: The learning rate follows the loss, which is averaged over ranks before: all
#   ranks have one rate.

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
batch = torch.randn(8, 4) * torch.linspace(0.2, 3, 8)[:, None], torch.arange(8) % 3
optimizer = lambda params: torch.optim.Adam(params, lr=0.05, eps=1e-3)
def train_step(model, optimizer, batch):
    x, y = batch
    for _ in range(3):
        value = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen = value.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(seen)
        seen /= world()
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * float(seen)
