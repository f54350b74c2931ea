# expect: forward/batch-coupled verified
# shows: Router that ranks tokens within a layer that does. The inner one is called with
#   the rows of all ranks already.

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

class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(4, 2)
    def forward(self, x):
        scores = self.score(x).softmax(1)
        order = scores.max(1).values.argsort(descending=True).argsort()
        return scores * (order < len(x) // 2)[:, None]
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(4, 6)
    def forward(self, x):
        weights = self.router(x)
        weights = weights / weights.sum(0).clamp(min=0.1)
        return weights[:, :1] * self.first(x) + weights[:, 1:] * self.second(x)
model = nn.Sequential(Layer(), nn.Linear(6, 3))
