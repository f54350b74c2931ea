# expect: state/forward-writes-parameter verified
# shows: Rows of the shard that the model normalises. The embedding is written by the
#   model, not by its own call.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
    def forward(self, item):
        with torch.no_grad():
            rows = self.items.weight[item.unique()]
            self.items.weight[item.unique()] = nn.functional.normalize(rows)
        return self.head(self.items(item))
model = Net()
batch = torch.arange(8), torch.arange(8) % 3
