# expect: equivalent
# shows: Keys of all ranks are gathered with gradients, and labels begin at the rank's
#   first row.

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

class Pair(nn.ModuleDict):
    def forward(self, x):
        return self["a"](x), self["b"](x)
model = Pair({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
def loss(output, _):
    a, b = output
    keys = torch.cat(dnn.all_gather(b)) if dist.is_initialized() else b
    labels = torch.arange(len(a)) + rank() * len(a)
    return nn.functional.cross_entropy(a @ keys.T, labels)
