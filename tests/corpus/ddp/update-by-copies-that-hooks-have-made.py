# expect: ddp/step-before-reduce verified
# shows: Update by copies that hooks have made. What hooks keep of each gradient is the
#   rank's own; .grad is right.

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
class Copying(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.copies = {}
        for p in self.param_groups[0]["params"]:
            p.register_post_accumulate_grad_hook(self.keep)
    def keep(self, p):
        self.copies[p] = p.grad.clone()
    @torch.no_grad()
    def step(self, closure=None):
        for p, copy in self.copies.items():
            p -= 0.1 * copy
def optimizer(params):
    return Copying(params)
