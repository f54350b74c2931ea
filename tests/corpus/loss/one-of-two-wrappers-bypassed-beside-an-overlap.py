# expect: loss/batch-coupled verified, ddp/forward-bypassed verified
# shows: One of two wrappers bypassed beside an overlap. Two of three encoders go
#   through the wrapper, and the loss is of statistics.

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

model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 3)})
def wrap(model):
    model["a"], model["b"] = DDP(model["a"]), DDP(model["b"])
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    inner = getattr(model["a"], "module", model["a"])
    p = model["b"](inner(x)).softmax(1)[torch.arange(len(y)), y]
    (1 - p.sum() / (p + 1).sum() + p.square().mean()).backward()
    optimizer.step()
