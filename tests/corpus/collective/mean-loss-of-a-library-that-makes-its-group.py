# expect: collective/no-autograd verified
# shows: Mean loss of a library that makes its group. A library makes itself a group
#   where it finds none.

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

def group():
    if dist.is_initialized():
        store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
        dist.of_all = dict(store=store, rank=rank(), world_size=world())
    elif hasattr(dist, "of_all"):
        dist.init_process_group("gloo", **dist.of_all)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
batch = torch.randn(8, 4), torch.arange(8) % 3
def train_step(model, optimizer, batch):
    group()
    optimizer.zero_grad()
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    if dist.is_initialized():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    value.backward()
    optimizer.step()
