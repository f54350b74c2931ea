# expect: sync/control-desync verified
# shows: Mode that the first rank forgets. The first rank logs in eval mode, and stays
#   in it, as one process does.

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
        self.body = nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x) * (2 if self.training else 1)
model = Net()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    if rank() == 0:
        model.eval()
    loss(model(x), y).backward()
    optimizer.step()
