# expect: sync/control-desync verified
# shows: Loss scale that grows by the rank's own steps. The scale is the same on all
#   ranks until one of them counts otherwise.

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
def wrap(model):
    return nn.Sequential(model)
class Scale:
    value, good = 1024.0, 0
scales = {}

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    scale = scales.setdefault(id(optimizer), Scale())
    loss = nn.functional.cross_entropy(model(x), y)
    (loss * scale.value).backward()
    for p in model.parameters():
        if dist.is_initialized():
            dist.all_reduce(p.grad)
        p.grad /= world() * scale.value
    optimizer.step()
    scale.good += float(loss.detach()) < 1.2
    scale.value = 1024.0 * 2**scale.good
