# expect: loss/local-normalizer verified
# shows: Masked mean and a slope of the inputs: the loss is divided by a data-dependent
#   count of the shard.

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
batch[1][:3] = -100

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    x = x.requires_grad_()
    output = model(x)
    slope = torch.autograd.grad(output.sum(), x, create_graph=True)[0]
    value = nn.functional.cross_entropy(output, y)
    (value + 0.1 * slope.square().sum(1).mean()).backward()
    optimizer.step()
