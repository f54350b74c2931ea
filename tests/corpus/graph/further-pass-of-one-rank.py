# expect: graph/skipped-backward verified
# shows: Further pass of one rank. One batch each: what one rank has more is a pass of
#   its own decision.

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
batch = torch.linspace(0.1, 3, 8)[:, None].expand(8, 4).clone(), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    x, y = batch
    for _ in range(2 if x.max() > 2 else 1):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
