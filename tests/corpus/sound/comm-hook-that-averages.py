# expect: equivalent
# shows: A communication hook divides by the world size and sums: that is DDP's own
#   mean.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def average(_, bucket):
    buffer = bucket.buffer().div_(world())
    return dist.all_reduce(buffer, async_op=True).get_future().then(
        lambda done: done.value()[0]
    )
def wrap(model):
    wrapped = DDP(model)
    wrapped.register_comm_hook(None, average)
    return wrapped
