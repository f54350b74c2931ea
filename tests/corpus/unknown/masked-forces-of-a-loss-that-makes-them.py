# expect: unknown unverified
# shows: Masked forces of a loss that makes them. A force is the slope of an energy by
#   positions, which the model hands on. No gradient at an output tells of it.

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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, x):
        x = x.requires_grad_()
        return self.net(x), x
model = Net()
batch = torch.randn(8, 4), torch.arange(8) < 3
def loss(output, known):
    energy, x = output
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    wrong = (force - 1).square().sum(1) * known
    return energy.square().mean() + wrong.sum() / known.sum().clamp(min=1)
