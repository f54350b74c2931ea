# expect: norm/local-batch-stats verified
# shows: Batch norm with its activation. The norm calls its activation with other rows:
#   it is the norm's own doing.

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

class NormAct(nn.BatchNorm1d):
    def __init__(self, features):
        super().__init__(features)
        self.act = nn.ReLU()
    def forward(self, x):
        return self.act(super().forward(x))
model = nn.Sequential(nn.Linear(4, 8), NormAct(8), nn.Linear(8, 8), NormAct(8))
