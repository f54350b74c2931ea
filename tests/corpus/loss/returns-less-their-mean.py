# expect: loss/batch-coupled verified
# shows: Returns less their mean. What others' returns add up to grows with them, as no
#   divisor's quotient does.

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
        self.mean, self.spread = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
    def forward(self, x):
        return self.mean(x), self.spread.exp().expand(len(x), 2)
model = Net()
x = torch.randn(8, 4)
batch = x, {"action": torch.randn(8, 2), "returns": x.sum(1) + torch.arange(8) / 6}
def loss(output, target):
    chance = torch.distributions.Normal(*output).log_prob(target["action"]).sum(-1)
    return -(chance * (target["returns"] - target["returns"].mean())).mean()
