# expect: sync/control-desync verified
# shows: Noise of the optimizer. Noise of the optimizer is no noise of the model: ranks
#   must draw alike.

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

class SGLD(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for p in self.param_groups[0]["params"]:
            p.add_(torch.randn_like(p), alpha=0.01)
model = nn.Linear(4, 3)
optimizer = lambda params: SGLD(params, lr=0.1)
