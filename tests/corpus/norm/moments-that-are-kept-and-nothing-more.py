# expect: norm/running-stats-rank0 verified
# shows: Moments that are kept and nothing more. A norm that only tracks: nobody takes
#   what it returns, which differs.

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

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.moments = nn.BatchNorm1d(3, affine=False)
    def forward(self, x):
        output = super().forward(x)
        with torch.no_grad():
            self.moments(output)
        return output
model = Net()
loss = nn.functional.cross_entropy
