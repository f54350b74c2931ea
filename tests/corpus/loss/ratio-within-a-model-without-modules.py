# expect: loss/batch-coupled verified
# shows: Ratio within a model without modules: the loss is not a sum over samples.

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

class Overlap(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
    def forward(self, x, y):
        p = (x @ self.weight).sigmoid()
        return 1 - (p * y).sum() / (p + y - p * y).sum()
model = Overlap()
batch = (torch.randn(8, 4), (torch.randn(8, 5) > 0).double()), torch.zeros(8)
loss = lambda output, _: output
