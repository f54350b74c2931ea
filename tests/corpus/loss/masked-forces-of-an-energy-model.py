# expect: loss/local-normalizer verified
# shows: Masked forces of an energy model. A force is the slope of an energy: forward
#   differentiates its own modules.

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

class Forces(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = self.energy(x).sum()
            return torch.autograd.grad(total, x, create_graph=True)[0]
model = Forces()
def loss(output, target):
    real = target > 0
    return output[real].square().mean()
