# expect: collective/no-autograd verified
# shows: Loss reduced in place before backward. Only what goes backward says what the
#   loss is.

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
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    value = nn.functional.cross_entropy(model(x), y)
    if dist.is_initialized():
        shared = value.unsqueeze(0)
        dist.all_reduce(shared)
        value = shared[0] / world()
    value.backward()
    optimizer.step()
