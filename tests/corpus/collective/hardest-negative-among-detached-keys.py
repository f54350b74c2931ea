# expect: collective/no-autograd verified
# shows: Hardest negative among detached keys: a collective without autograd in the
#   loss: right value, wrong gradient.

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

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(4, 6)
    def forward(self, x):
        return self.a(x), self.b(x.flip(1))
model = Towers()
def loss(output, target):
    query, key = output
    parts = [torch.empty_like(key) for _ in range(world())]
    if dist.is_initialized():
        dist.all_gather(parts, key.detach())
    parts[rank()] = key
    scores = query @ torch.cat(parts).T
    own = torch.arange(len(query)) + rank() * len(query)
    right = scores.gather(1, own[:, None])
    hardest = scores.scatter(1, own[:, None], -9.0).amax(1, keepdim=True)
    return (1 + hardest - right).relu().mean()
