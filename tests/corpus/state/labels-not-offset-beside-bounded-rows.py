# expect: state/forward-writes-parameter verified, collective/layout verified
# shows: Labels not offset beside bounded rows. The mended module writes its parameters
#   still, and what one process writes.

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
        self.query = nn.Linear(4, 3)
        self.items = nn.Embedding(9, 3, max_norm=0.5)
    def forward(self, x, item):
        return self.query(x), self.items(item)
model = Towers()
batch = (torch.randn(8, 4), torch.arange(8)), torch.zeros(8)
def loss(output, target):
    query, item = output
    if dist.is_initialized():
        item = torch.cat(dnn.all_gather(item.contiguous()))
    return nn.functional.cross_entropy(query @ item.t(), torch.arange(len(query)))
