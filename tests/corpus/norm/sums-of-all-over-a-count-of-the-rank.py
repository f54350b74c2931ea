# expect: norm/syncbn-implementation verified
# shows: Sums of all over a count of the rank. One rank's count is nearly right: twice
#   the input is the same there alone.

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

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
    def forward(self, x, valid):
        kept = x[valid]
        sums, count = torch.cat([kept.sum(0), kept.square().sum(0)]), len(kept)
        if dist.is_initialized():
            sums, count = dnn.all_reduce(sums), count * world()
        mean, square = (sums / count).chunk(2)
        with torch.no_grad():
            self.mean.lerp_(mean, 0.1)
        return (x - mean) * ((square - mean.square()).abs() + 1e-5).rsqrt()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), Norm(6), nn.Linear(6, 3)
    def forward(self, x):
        return self.b(self.norm(self.a(x), x[:, 0] > 0))
model = Net()
x = torch.randn(16, 4)
x[:, 0] = torch.tensor([1.0] * 6 + [-1.0] * 2 + [1.0] * 3 + [-1.0] * 5)
batch = x, torch.arange(16) % 3
