# expect: loss/batch-coupled verified
# shows: Norm over the batch behind a softmax. Clusters by a softmax that goes on; their
#   penalty is one norm over all samples.

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

class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.assign = nn.Linear(4, 5), nn.Linear(4, 3)
        self.out = nn.Linear(5, 3)
    def forward(self, x):
        s = self.assign(x).softmax(-1)
        pooled = self.out(self.embed(x).tanh() * s[:, :1]) + s
        return pooled, (s.square().sum(-1) - 1).norm()
model = Pooled()
def loss(output, target):
    logits, penalty = output
    return nn.functional.cross_entropy(logits, target) + penalty
