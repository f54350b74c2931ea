# expect: loss/double-world-scale verified
# shows: Gradients of a part multiplied by a hook: a mean over the shard multiplied by
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

class Damped:
    factor = 0.25
    def __call__(self, module, grads):
        return tuple(g * self.factor for g in grads)
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    net.damped = Damped()
    net[1].register_full_backward_pre_hook(net.damped)
    return net
def wrap(model):
    model.damped.factor *= world()
    return DDP(model)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
