# expect: ddp/forward-bypassed verified
# shows: Method of a wrapper of one's own. A class of one's own made of DDP's, whose
#   methods go past its forward.

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

class Runner(DDP):
    def losses(self, *args):
        return self.module.losses(*args)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
    def forward(self, x, y):
        return self.losses(x, y)
    def losses(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y)
model = Net()
def wrap(model):
    return Runner(model)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    model.losses(*batch).backward()
    optimizer.step()
