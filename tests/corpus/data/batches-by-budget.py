# expect: data/uneven-batches verified
# shows: Batches by budget. Each batch steps its own: what is made up for is a backward,
#   no update.

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

model = nn.Linear(4, 1)
sizes = torch.tensor([1, 1, 1, 1, 2, 2, 2, 2])
batch = torch.randn(8, 4), sizes

def train_step(model, optimizer, batch):
    x, sizes = batch
    optimizer.zero_grad()
    number = (sizes.cumsum(0) - sizes) // 4
    for i in number.unique():
        (model(x[number == i]).square().sum() / len(x)).backward()
    optimizer.step()
