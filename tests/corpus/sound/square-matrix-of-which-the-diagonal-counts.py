# expect: equivalent
# shows: The output relates every sample to every other, and the loss reads the diagonal
#   alone.

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

class Net(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ x.T
model = Net(4, 4)
def loss(output, _):
    return output.diagonal().square().mean()
