# expect: ddp/autograd-grad verified
# shows: Slopes on one rank only. A rank whose shard has no positives sets no gradient:
#   all average all the same.

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

model = nn.Linear(4, 1)
batch = torch.randn(8, 4), torch.arange(8)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    chosen = model(x)[y < 3]
    if len(chosen):
        params = list(model.parameters())
        value = chosen.square().sum() / len(x)
        for p, grad in zip(params, torch.autograd.grad(value, params)):
            p.grad = grad.clone()
    optimizer.step()
