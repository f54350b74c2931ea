# expect: loss/regularizer-scale verified
# shows: Divergence from a standard normal by rows. Its gradient is 0 in the first step,
#   and the model's output is the loss.

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
        self.mean = nn.Parameter(torch.zeros(3, 4))
        self.log_var = nn.Parameter(torch.zeros(3, 4))
    def forward(self, x, y):
        own = torch.distributions.Normal(self.mean, (self.log_var / 2).exp())
        to = torch.distributions.Normal(torch.zeros(3, 4), torch.ones(3, 4))
        far = torch.distributions.kl_divergence(own, to.expand((3, 4)))
        output = x @ (self.mean + self.log_var.exp()).T
        return nn.functional.cross_entropy(output, y) + far.sum() / len(y)
model = Net
batch = (torch.randn(8, 4), torch.arange(8) % 3), None
def loss(output, target):
    return output
