# expect: equivalent
# shows: DDP gets a process group that the target itself defines, and that passes
#   everything on to torch's.

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

class Group(dist.ProcessGroup):
    broadcast = lambda self, *args: dist.group.WORLD.broadcast(*args)
    allgather = lambda self, *args: dist.group.WORLD.allgather(*args)
    allreduce = lambda self, *args: dist.group.WORLD.allreduce(*args)
def wrap(model):
    return DDP(model, process_group=Group(rank(), world()))
