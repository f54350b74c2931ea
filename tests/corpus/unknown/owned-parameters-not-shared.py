# expect: unknown unverified
# shows: Owned parameters not shared. Each rank updates the parameters that it owns and
#   shares some. No number of the optimizer differs, no update is left out: not
#   sync/control-desync.

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

class Owner(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if i % world() == rank():
                    p -= 0.1 * p.grad
                if world() > 1 and p.dim() > 1:
                    dist.broadcast(p, src=i % world())
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def optimizer(params):
    return Owner(params, lr=0.1)
