# expect: loss/missing-world-scale verified
# shows: Gradients divided by the number of ranks. The loss is a mean, DDP averages, and the
#   step divides what backward made once more.

import torch
import torch.distributed as dist
from torch import nn

def world():
    return dist.get_world_size() if dist.is_initialized() else 1

torch.manual_seed(0)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
model = nn.Linear(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    for p in model.parameters():
        p.grad /= world()
    optimizer.step()
