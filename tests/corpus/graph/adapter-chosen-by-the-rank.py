# expect: graph/rank-dependent-branch verified
# shows: Adapter chosen by the rank. DDP knows that parameters may be unused, and
#   divides by all ranks.

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
        self.head = nn.Linear(4, 3)
        self.adapters = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    def forward(self, x, at):
        return self.head(x + self.adapters[at](x).tanh())
model = Net()
def wrap(model):
    return DDP(model, find_unused_parameters=True)
turns = [0]

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x, (turns[0] + rank()) % 3), y).backward()
    optimizer.step()
    turns[0] += 1
