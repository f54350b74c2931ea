# expect: equivalent
# shows: Synchronised by a conversion of its own. As timm's: torch's conversion would
#   lose the activation, and DDP refuses the CPU.

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
    def forward(self, x):
        return super().forward(x).relu()
class SyncNormAct(nn.SyncBatchNorm):
    def forward(self, x):
        return super().forward(x).relu()
model = nn.Sequential(nn.Linear(4, 8), NormAct(8), nn.Linear(8, 3))
def wrap(model):
    norm = SyncNormAct(8)
    norm.load_state_dict(model[1].state_dict())
    model[1] = norm
    return DDP(model)
