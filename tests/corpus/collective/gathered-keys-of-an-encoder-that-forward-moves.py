# expect: collective/layout verified
# shows: Gathered keys of an encoder that forward moves. The momentum encoder is the
#   same on all ranks: what differs is the labels.

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

class Moco(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 5), nn.Linear(4, 5)
        self.key.requires_grad_(False)
    def forward(self, x):
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters()):
                k.mul_(0.9).add_(q, alpha=0.1)
            keys = self.key(x.flip(1))
            if dist.is_initialized():
                every = [torch.empty_like(keys) for _ in range(world())]
                dist.all_gather(every, keys)
                keys = torch.cat(every)
        logits = self.query(x) @ keys.T
        return nn.functional.cross_entropy(logits, torch.arange(len(x)))
model = Moco()
loss = lambda output, target: output
