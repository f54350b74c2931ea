# expect: loss/local-normalizer verified, loss/regularizer-scale verified
# shows: Penalty of an output beside a masked mean. The gates' gradient at the output is
#   the penalty's and the data's together.

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
        self.gate = nn.Parameter(torch.rand(4))
        self.out = nn.Linear(4, 3)
    def forward(self, x):
        return self.out(x * self.gate), self.gate
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, -100, 1, -100, 0])
def loss(output, target):
    world = dist.get_world_size() if dist.is_initialized() else 1
    logits, gate = output
    return nn.functional.cross_entropy(logits, target) + world * gate.norm()
