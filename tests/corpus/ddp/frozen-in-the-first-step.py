# expect: ddp/frozen-after-wrap verified
# shows: Frozen in the first step. Trainable again by the time DDP complains.

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

model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
wrap = DDP

def train_step(model, optimizer, batch):
    inner = getattr(model, "module", model)
    inner.steps = getattr(inner, "steps", 0) + 1
    inner[2].requires_grad_(inner.steps > 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
