# expect: forward/batch-coupled verified
# shows: Samples mixed with those from the other end. Inputs and classes of a sample are
#   mixed with those of its mirror image.

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
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 2, 1, 1, 0])
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(0.7 * x + 0.3 * x.flip(0))
    (0.7 * loss(output, y) + 0.3 * loss(output, y.flip(0))).backward()
    optimizer.step()
