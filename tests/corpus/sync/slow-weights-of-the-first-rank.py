# expect: sync/control-desync verified
# shows: Slow weights of the first rank. Gradients are equal, and the optimizer does
#   something else on the first rank.

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

class Lookahead(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.5)
        self.weights = self.param_groups[0]["params"]
        self.slow, self.count = [p.detach().clone() for p in self.weights], 0
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.count += 1
        if self.count % 2 == 0 and rank() == 0:
            for p, slow in zip(self.weights, self.slow):
                p.copy_(slow.lerp_(p, 0.5))
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
def optimizer(params):
    return Lookahead(params)
