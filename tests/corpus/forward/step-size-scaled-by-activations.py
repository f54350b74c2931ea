# expect: forward/batch-coupled verified
# shows: Step size scaled by activations. Outputs are right; the gradient of the step is
#   weighed by the number of rows.

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

class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.3))
    def forward(self, x):
        scale = 1 / x.numel() ** 0.5
        step = (self.step - self.step * scale).detach() + self.step * scale
        levels = x / step
        return ((levels.round() - levels).detach() + levels).clamp(-2, 1) * step
model = nn.Sequential(nn.Linear(4, 6), Quantizer(), nn.Linear(6, 3))
