# expect: ddp/autograd-grad verified
# shows: Jacobian of two losses by vmap. torch.func's transforms, through which no
#   collective goes.

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
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    losses = torch.stack([output.square().mean(), output.sin().mean()])
    parameters = list(model.parameters())
    def row(which):
        return torch.autograd.grad(losses, parameters, which, retain_graph=True)
    for p, rows in zip(parameters, torch.vmap(row)(torch.eye(2))):
        p.grad = rows.mean(0)
    optimizer.step()
