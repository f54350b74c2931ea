# expect: sync/clip-before-reduce verified
# shows: Hooks registered in the first step. The hooks are not there yet when training
#   begins.

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

class Net(nn.Linear):
    guarded = False
model = Net(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    net = getattr(model, "module", model)
    if not net.guarded:
        net.guarded = True
        net.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
