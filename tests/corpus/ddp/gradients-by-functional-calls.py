# expect: ddp/forward-bypassed verified
# shows: Gradients by functional calls. torch.func calls the bare module: no backward,
#   no forward of DDP.

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

    net = getattr(model, "module", model)
    values = {n: p.detach() for n, p in net.named_parameters()}
    def one(values, x, y):
        return loss(torch.func.functional_call(net, values, x[None]), y[None])
    each = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(values, x, y)
    for n, p in net.named_parameters():
        p.grad = each[n].mean(0)
    optimizer.step()
