# expect: rng/same-stream-all-ranks verified
# shows: Generator of numpy that the model seeds. With the rows of all ranks it draws
#   for them as one process does: no coupling.

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

import numpy as np
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
        self.rng = np.random.RandomState(5)
    def forward(self, x):
        h = self.a(x)
        return self.b(h + torch.from_numpy(self.rng.randn(*h.shape)).to(h.dtype))
def model():
    torch.manual_seed(0)
    return Net()
