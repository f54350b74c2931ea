# expect: ddp/forward-bypassed verified
# shows: Wrapper that hands on attributes. What the wrapper hands on is the model's own,
#   and its calls go past the wrapper.

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

class Wrapper(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
class Net(nn.Linear):
    def training_loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)
model = Net(4, 3)
wrap = Wrapper
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    model.training_loss(*batch).backward()
    optimizer.step()
