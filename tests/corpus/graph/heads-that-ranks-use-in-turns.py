# expect: graph/rank-dependent-branch verified
# shows: Heads that ranks use in turns. Each rank leaves out a head, and the next step
#   another one.

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

class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))
    def forward(self, x, domain):
        parts = [self.heads[d](x[domain == d]) for d in (0, 1) if (domain == d).any()]
        return torch.cat(parts)
model = Domains()
wrap = lambda model: DDP(model, gradient_as_bucket_view=True)
def batch(step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    return (x, (torch.arange(8) // 4 + step) % 2), torch.ones(8, dtype=torch.long)
