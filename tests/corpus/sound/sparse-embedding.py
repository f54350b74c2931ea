# expect: equivalent
# shows: An embedding has sparse gradients, which DDP reduces as such.

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
        self.words, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3)
    def forward(self, ids):
        return self.head(self.words(ids).mean(1))
model, batch = Net(), (torch.randint(0, 5, (8, 6)), torch.arange(8) % 3)
