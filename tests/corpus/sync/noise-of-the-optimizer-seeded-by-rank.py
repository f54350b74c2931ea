# expect: sync/control-desync verified
# shows: Noise of the optimizer seeded by rank: ranks make different decisions from
#   equal gradients.

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

class Langevin(torch.optim.SGD):
    def __init__(self, params, seed):
        super().__init__(params, lr=0.1)
        self.generator = torch.Generator().manual_seed(seed)
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            noise = torch.randn(p.shape, generator=self.generator, dtype=torch.float64)
            p.add_(noise.to(p.dtype), alpha=0.1)
model = nn.Linear(4, 3)
def optimizer(params):
    return Langevin(params, seed=7 + rank())
