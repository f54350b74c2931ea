# expect: loss/local-normalizer verified
# shows: Mean by a smoothed count. What it was before is no other sample's doing.

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

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
batch = torch.randn(8, 4), torch.tensor([0, -100, -100, -100, 1, 2, -100, 0])
class Smoothed:
    value = None
    def __call__(self, output, target):
        n = float((target >= 0).sum())
        self.value = n if self.value is None else 0.9 * self.value + 0.1 * n
        summed = nn.functional.cross_entropy(output, target, reduction="sum")
        return summed / self.value
loss = Smoothed()
