# expect: loss/double-world-scale verified
# shows: Own rows among gathered ones times world and a temperature. Rows get their
#   gradient on their own rank, the temperature on every rank.

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

class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(4, 5)
        self.scale = nn.Parameter(torch.tensor(0.3))
    def forward(self, x):
        return self.a(x), self.b(x.flip(1)), self.scale.exp()
model = Clip()
def everyone(rows):
    if world() == 1:
        return rows
    every = [torch.empty_like(rows) for _ in range(world())]
    dist.all_gather(every, rows.detach())
    every[rank()] = rows
    return torch.cat(every)
def loss(output, target):
    logits = output[2] * everyone(output[0]) @ everyone(output[1]).T
    return world() * nn.functional.cross_entropy(logits, torch.arange(len(logits)))
