# expect: norm/local-batch-stats verified
# options: --modes dp
# shows: A norm of one's own asks all ranks for the mean, and replicas of DataParallel
#   have no process group to ask.

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

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
    def forward(self, x):
        mean = mean_of_all(x)
        self.mean.lerp_(mean.detach(), 0.1)
        return (x - mean) * (mean_of_all((x - mean) ** 2) + 1e-5).rsqrt()
model = nn.Sequential(nn.Linear(4, 6), Norm(), nn.Linear(6, 3))
