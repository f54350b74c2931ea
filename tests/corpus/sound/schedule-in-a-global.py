# expect: equivalent
# shows: The learning rate follows a global list of steps, which grows alike on all
#   ranks.

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

model, steps = nn.Linear(4, 3), []
def train_step(model, optimizer, batch):
    steps.append(0.1 / (1 + len(steps)))
    optimizer.param_groups[0]["lr"] = steps[-1]
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
