# expect: collective/no-autograd verified
# shows: Shares summed without autograd beside a buffer in the graph. The graph has
#   saved a buffer, and to see what the module is like it runs again.

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

class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("codes", torch.randn(3, 5))
    def forward(self, x):
        shares = (self.body(x) @ self.codes).softmax(-1)
        mean = shares.mean(0)
        if dist.is_initialized():
            mean = mean.clone()
            dist.all_reduce(mean)
            mean = mean / world()
        return shares.log(), (mean * mean.log()).sum()
model = Coder()
batch = torch.randn(8, 4), torch.arange(8) % 5
def loss(output, target):
    return nn.functional.nll_loss(output[0], target) + output[1]
