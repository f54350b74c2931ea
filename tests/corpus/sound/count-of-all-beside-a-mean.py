# expect: equivalent
# shows: Count of all beside a mean. Terms that are right, each in its own way.

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
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output, count, world = model(x), (y != -100).sum(), 1
    if dist.is_initialized():
        dist.all_reduce(count)
        world = dist.get_world_size()
    fit = world * nn.functional.cross_entropy(output, y, reduction="sum") / count
    (fit + 0.1 * output.square().mean()).backward()
    optimizer.step()
