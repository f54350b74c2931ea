# expect: unknown unverified
# shows: Update that a hook for all gradients prepares. Without the hook there is no
#   update: what takes it away proves nothing.

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

from torch.autograd.graph import register_multi_grad_hook
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
class Signs(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.held = list(self.param_groups[0]["params"])
        register_multi_grad_hook(self.held, self.prepare)
    def prepare(self, grads):
        self.signs = [grad.sign() for grad in grads]
    @torch.no_grad()
    def step(self, closure=None):
        for p, sign in zip(self.held, self.signs):
            p -= 0.1 * sign
def optimizer(params):
    return Signs(params)
