# expect: norm/local-batch-stats verified, loss/batch-coupled verified
# shows: Dice inside a model with batch norm. The loss of all samples would have batch
#   norm see all of them, too.

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
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.head = nn.Linear(6, 1)
    def forward(self, x, y):
        p = self.head(self.body(x)).squeeze(1).sigmoid()
        return 1 - 2 * (p * y).sum() / (p + y).sum()
model = Net()
batch = (torch.randn(8, 4), (torch.arange(8) % 3 == 0).float()), torch.zeros(8)
def loss(output, target):
    return output
