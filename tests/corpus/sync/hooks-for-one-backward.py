# expect: sync/clip-before-reduce verified
# shows: Hooks for one backward: gradients are clipped before they are reduced.

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

    clamp = lambda grad: grad.clamp(-0.05, 0.05)
    hooks = [p.register_hook(clamp) for p in model.parameters()]
    nn.functional.cross_entropy(model(x), y).backward()
    for hook in hooks:
        hook.remove()
    optimizer.step()
