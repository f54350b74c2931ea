# expect: dp/replica-state-lost verified
# options: --modes dp
# shows: The hidden state of the last step is an attribute, and every replica has rows
#   of its own to remember.

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

class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.state = nn.GRUCell(4, 5), nn.Linear(5, 3), None
    def forward(self, x):
        state = self.cell(x, self.state)
        self.state = state.detach()
        return self.head(state)
model = Remembering()
