# expect: sync/join-divisor verified
# shows: Join by its class: gradients are divided by a count that includes ranks without
#   data left.

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

from torch.distributed.algorithms.join import Join
model = nn.Linear(4, 1)
batch = torch.randn(8, 3, 4), torch.tensor([3] * 4 + [2] * 4)
def steps(model, optimizer, x, lengths):
    for i in range(int(lengths.max())):
        optimizer.zero_grad()
        model(x[lengths > i, i]).square().mean().backward()
        optimizer.step()
def train_step(model, optimizer, batch):
    if not dist.is_initialized():
        return steps(model, optimizer, *batch)
    with Join([model]):
        steps(model, optimizer, *batch)
