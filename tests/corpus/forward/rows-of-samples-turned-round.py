# expect: forward/batch-coupled verified
# shows: Rows of samples turned round. Several rows per sample, all of them rows that
#   the batch has, in another order.

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

class Negatives(nn.Module):
    def forward(self, x):
        return x.flip(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.negatives = nn.Linear(4, 3), Negatives()
    def forward(self, x):
        rows = self.linear(x.flatten(0, 1))
        return rows.unflatten(0, (-1, 2)), self.negatives(rows).unflatten(0, (-1, 2))
model = Net()
batch = torch.randn(8, 2, 4), torch.zeros(8)
def loss(output, target):
    rows, negatives = output
    return (rows - negatives).square().sum(-1).neg().exp().mean()
