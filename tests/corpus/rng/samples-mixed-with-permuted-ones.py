# expect: rng/stochastic-layer verified
# shows: Samples mixed with permuted ones. Pairs within the shard: no noise follows the
#   sample, none at all is alike.

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
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    order = torch.randperm(len(x))
    output = model(0.7 * x + 0.3 * x[order])
    (0.7 * loss(output, y) + 0.3 * loss(output, y[order])).backward()
    optimizer.step()
