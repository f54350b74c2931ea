# expect: loss/batch-coupled verified, sync/control-desync unverified
# shows: Rate by the own loss beside an overlap. The run with the loss of all samples
#   gives all ranks one rate, too.

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

    p = model(x).softmax(1)[torch.arange(len(y)), y]
    value = 1 - p.sum() / (p + 1).sum() + p.square().sum() / len(p) ** 2
    value.backward()
    optimizer.param_groups[0]["lr"] = 0.5 * value.item()
    optimizer.step()
