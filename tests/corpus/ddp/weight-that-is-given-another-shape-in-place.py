# expect: ddp/param-replaced-after-wrap unverified
# shows: Weight that is given another shape in place. As a library resizes the embedding
#   of its tokens.

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

model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False))
def wrap(model):
    return DDP(model)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    head = getattr(model, "module", model)[2]
    if len(head.weight) == 3:
        head.weight.data = torch.cat([head.weight.data, head.weight.data[:1] / 2])
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
