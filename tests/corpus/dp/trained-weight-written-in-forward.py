# expect: dp/replica-state-lost verified
# options: --modes dp
# shows: The forward normalises a trained weight in place, and replicas of DataParallel
#   lose that.

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

class Prototypes(nn.Linear):
    def forward(self, x):
        self.weight.data = nn.functional.normalize(self.weight.data, dim=1)
        return super().forward(x)
model = Prototypes(4, 3)
