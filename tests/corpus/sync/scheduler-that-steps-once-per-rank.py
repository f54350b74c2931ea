# expect: sync/control-desync verified
# shows: Scheduler that steps once per rank: ranks make different decisions from equal
#   gradients.

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
def optimizer(params):
    made = torch.optim.SGD(params, lr=0.5)
    made.scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
    return made

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    optimizer.step()
    for _ in range(world()):
        optimizer.scheduler.step()
