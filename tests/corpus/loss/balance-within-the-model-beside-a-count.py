# expect: loss/local-normalizer verified, loss/batch-coupled verified
# shows: Balance within the model beside a count. One of them is made within the model,
#   of what its router returns, and is no output with samples.

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

class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])
    def forward(self, x):
        shares = self.router(x).softmax(1)
        mixed = torch.stack([e(x) for e in self.experts], 1) * shares[:, :, None]
        return mixed.sum(1), 3 * shares.mean(0).square().sum()
model = Routed()
batch = torch.randn(8, 4), torch.tensor([0, -100, 2, -100, 1, 2, 0, 1])
def loss(output, target):
    return nn.functional.cross_entropy(output[0], target) + 0.2 * output[1]
