# expect: dp/replica-parameters-empty verified
# options: --modes dp
# shows: The forward goes by how many parameters there are, and replicas of DataParallel
#   have none.

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

class Peeking(nn.Linear):
    def forward(self, x):
        return super().forward(x) * (2 if len(list(self.parameters())) == 0 else 1)
model = Peeking(4, 3)
