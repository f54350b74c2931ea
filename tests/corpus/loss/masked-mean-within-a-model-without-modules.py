# expect: loss/local-normalizer verified
# shows: Masked mean within a model without modules. No module returns what the loss is
#   made of; a count divides it, or outputs do.

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

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
    def forward(self, x, mask):
        return ((x @ self.weight).square().sum(1) * mask).sum() / mask.sum()
model = Masked()
batch = (torch.randn(8, 4), torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])), torch.zeros(8)
loss = lambda output, _: output
