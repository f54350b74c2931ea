# expect: loss/sum-reduction verified
# shows: Sum beside a prior kept by the model. A prior's moments are kept in an
#   attribute: no data are in its term.

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
        self.prior = {"mean": torch.full((3, 4), 0.3), "deviation": torch.ones(3, 4)}
    def forward(self, x, y):
        error = (self.weight - self.prior["mean"]) / self.prior["deviation"]
        fit = nn.functional.cross_entropy(super().forward(x), y, reduction="sum")
        return fit + error.square().sum()
model = Net()
batch = (torch.randn(8, 4), torch.arange(8) % 3), None
loss = lambda output, _: output
