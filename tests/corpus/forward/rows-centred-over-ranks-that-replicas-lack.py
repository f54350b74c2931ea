# expect: forward/batch-coupled verified
# options: --modes dp
# shows: Rows are centred by the mean of all ranks, and replicas of DataParallel have no
#   process group to ask.

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

def mean_of_all(x):
    if not dist.is_initialized():
        return x.mean(0)
    return dnn.all_reduce(x.mean(0)) / world()
class Centred(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return (y - mean_of_all(y)).sin()
model = nn.Sequential(Centred(4, 6), nn.Linear(6, 3))
