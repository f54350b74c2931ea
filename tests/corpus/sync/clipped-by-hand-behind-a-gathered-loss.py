# expect: sync/clip-norm-overreduced verified
# shows: Clipped by hand behind a gathered loss. A norm that is summed over ranks,
#   behind a loss that gathers as it should.

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

model = nn.Linear(4, 5)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    keys, start = output, 0
    if world() > 1:
        keys, start = torch.cat(dnn.all_gather(output)), rank() * len(output)
    own = torch.arange(len(output)) + start
    nn.functional.cross_entropy(output @ keys.T, own).backward()
    square = sum(p.grad.square().sum() for p in model.parameters())
    if world() > 1:
        dist.all_reduce(square)
    for p in model.parameters():
        p.grad *= 0.1 / square.sqrt()
    optimizer.step()
