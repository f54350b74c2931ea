# expect: ddp/wrapper-missing verified, ddp/forward-bypassed verified
# shows: Poses beside a field that is unwrapped. Poses are in no DDP object, and the
#   field is called past its own.

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
        self.poses, self.field = nn.Embedding(3, 4), nn.Linear(4, 3)
    def forward(self, x):
        field = getattr(self.field, "module", self.field)
        return field(x + self.poses((x[:, 0] > 0).long()))
model = Net()
def wrap(model):
    model.field = DDP(model.field)
    return model
