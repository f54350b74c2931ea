# expect: state/buffer-not-synced verified
# shows: Squares of gradients by name of a shard. By the names of parameters, too, and
#   no weights.

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

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if not hasattr(optimizer, "squares"):
        optimizer.squares = {}
    net = getattr(model, "module", model)
    own = torch.autograd.grad(loss(net(x), y), list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    drag = [(optimizer.squares[n] * p).sum() for n, p in net.named_parameters()
            if n in optimizer.squares]
    optimizer.squares = {n: g.square() for n, g in zip(names, own)}
    optimizer.zero_grad()
    (loss(model(x), y) + sum(drag)).backward()
    optimizer.step()
