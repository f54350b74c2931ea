# expect: equivalent
# shows: A communication hook sums, once per update and over losses that are divided by
#   the world size.

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

import contextlib
def add(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
def wrap(model):
    ddp = DDP(model)
    ddp.register_comm_hook(None, add)
    return ddp
def not_yet(model, last):
    return model.no_sync() if world() > 1 and not last else contextlib.nullcontext()
model = nn.Linear(4, 3)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    for i, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        with not_yet(model, last=i == 1):
            (nn.functional.cross_entropy(model(a), b) / (2 * world())).backward()
    optimizer.step()
