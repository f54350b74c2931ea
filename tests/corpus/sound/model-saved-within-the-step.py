# expect: equivalent
# shows: Model saved within the step. The whole model is written and read: what watches
#   its calls may not be in the way.

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

import io
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(getattr(model, "module", model), file)
    file.seek(0)
    torch.load(file, weights_only=False)(x).sum().backward()
    optimizer.zero_grad()
