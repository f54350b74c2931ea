# expect: equivalent
# shows: DDP finds no tensors in the distribution that forward returns, and needs none:
#   all parameters are used.

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
    def forward(self, x):
        return torch.distributions.Categorical(logits=super().forward(x))
model = Net(4, 3)
def loss(output, target):
    return -output.log_prob(target).mean()
