# expect: ddp/rank-local-weights verified
# shows: Weights bounded on the first rank. Rank 0 alone keeps the weights in their
#   bounds.

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

    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(-0.2, 0.2)
