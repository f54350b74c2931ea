# expect: dp/scatter-semantics verified
# options: --modes dp
# shows: A parameter of no samples is among the outputs, and the replicas' vectors are
#   gathered in a row.

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

class Weighed(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor([0.3, -0.2]))
    def forward(self, x):
        return super().forward(x), self.scale
model = Weighed()
def loss(output, target):
    logits, scale = output
    return nn.functional.cross_entropy(logits, target) * scale.exp().sum()
