# expect: state/forward-writes-parameter verified
# shows: Rows shortened in forward after the first update. In the first step rows are
#   shortened by a rounding of the norm alone, 1e-7 of it.

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

class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(30, 6, mode="mean", max_norm=1.0)
        self.head = nn.Linear(6, 3)
        rows = self.table.weight.data
        rows /= rows.norm(dim=1, keepdim=True)
    def forward(self, ids):
        return self.head(self.table(ids))
model = Bag()
first, second = torch.randint(0, 12, (8, 5)), torch.randint(9, 30, (8, 5))
batch = torch.cat([first, second]), torch.arange(16) % 3
def optimizer(params):
    return torch.optim.SGD(params, lr=2.0)
