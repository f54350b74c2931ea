# expect: loss/batch-coupled verified
# shows: Pairs of vectors that are made twice. The loss goes backward to the vectors,
#   and these, chunk by chunk, to the model.

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
import contextlib
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    with torch.no_grad():
        z = torch.cat([model(part) for part in x.chunk(2)])
    z = z.requires_grad_()
    nn.functional.cross_entropy(z @ z.T.detach(), torch.arange(len(z))).backward()
    for i, (part, grad) in enumerate(zip(x.chunk(2), z.grad.chunk(2))):
        local = hasattr(model, "no_sync") and i == 0
        with model.no_sync() if local else contextlib.nullcontext():
            (model(part) * grad).sum().backward()
    optimizer.step()
