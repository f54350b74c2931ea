# expect: forward/batch-coupled verified
# shows: Samples mixed with the one before: a module mixes samples.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def entropy(output, target):
    return nn.functional.cross_entropy(output, target)

def train_step(model, optimizer, batch):
    x, y = batch
    output = model(0.7 * x + 0.3 * x.roll(1, 0))
    optimizer.zero_grad()
    (0.7 * entropy(output, y) + 0.3 * entropy(output, y.roll(1))).backward()
    optimizer.step()
