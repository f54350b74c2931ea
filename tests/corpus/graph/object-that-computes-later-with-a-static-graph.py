# expect: graph/opaque-output verified
# shows: Object that computes later with a static graph. The object computes its tensors
#   in the loss: none can be handed through DDP.

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

class Later:
    def __init__(self, net, x):
        self.net, self.x = net, x
    def logits(self):
        return self.net(self.x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return Later(self.net, x)
model = Net()
def wrap(model):
    return DDP(model, static_graph=True)
def loss(output, target):
    return nn.functional.cross_entropy(output.logits(), target)
