# expect: ddp/unfrozen-after-wrap verified, sync/comm-hook-semantics verified
# shows: Unfrozen beside a communication hook: parameters were unfrozen after wrapping.
#   A communication hook, or a step that reduces by itself, does not return the mean.

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

model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
model[0].requires_grad_(False)
def summed(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0])
def wrap(model):
    model = DDP(model)
    model.register_comm_hook(None, summed)
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    inner = getattr(model, "module", model)
    inner[0].requires_grad_(True)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
