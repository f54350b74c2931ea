# expect: loss/batch-coupled verified
# shows: Standardised weights beside a spread without samples. What has no samples goes
#   to the loss of all ranks as it is, whatever its length.

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
        self.mean, self.spread = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))
    def forward(self, x):
        return self.mean(x), self.spread.exp()
model = Net()
batch = torch.randn(8, 4), torch.randn(8, 3), torch.randn(8)
def train_step(model, optimizer, batch):
    x, y, weight = batch
    optimizer.zero_grad()
    weight = (weight - weight.mean()) / weight.std()
    mean, spread = model(x)
    each = ((y - mean) / spread).square().sum(1)
    (each.neg().exp() * weight).mean().backward()
    optimizer.step()
