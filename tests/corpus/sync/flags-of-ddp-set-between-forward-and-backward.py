# expect: sync/no-sync-scope verified
# shows: Flags of DDP set between forward and backward. The second forward lies within
#   no_sync, and its backward sets DDP's own flags.

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
model = nn.Linear(4, 3)
@contextlib.contextmanager
def synchronised(model):
    if not hasattr(model, "module"):
        yield
        return
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = model.require_forward_param_sync = True
    yield
    model.require_backward_grad_sync, model.require_forward_param_sync = before
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    with model.no_sync() if dist.is_initialized() else contextlib.nullcontext():
        first, second = loss(model(x), y), loss(model(-x), y)
        first.backward()
    with synchronised(model):
        second.backward()
    optimizer.step()
