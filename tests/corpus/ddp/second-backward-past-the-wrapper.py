# expect: ddp/forward-bypassed verified
# shows: Second backward past the wrapper: the forward bypasses DDP.

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
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    loss(getattr(model, "module", model)(1.1 * x), y).backward()
    optimizer.step()
