# expect: loss/batch-coupled verified
# shows: Norm of all gradients penalised in forward. Its gradient passes by the outputs
#   of all modules: it is one of the weights.

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

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    def forward(self, real, between):
        between.requires_grad_()
        slope, = torch.autograd.grad(
            self.net(between).sum(), between, create_graph=True
        )
        return self.net(real), (slope.norm() - 1).square()
model = Critic()
batch = (torch.randn(8, 4), torch.randn(8, 4)), torch.zeros(8)
def loss(output, target):
    return output[1] - output[0].mean()
