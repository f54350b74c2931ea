# expect: equivalent
# shows: The output is a list with an item for each sample, and the loss a mean over it,
#   in a step of the target's own.

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
        self.net = nn.Linear(4, 3)
    def forward(self, x):
        return [{"scores": self.net(row)} for row in x]
model = Net()
batch = torch.randn(8, 4), torch.tensor([0, 1, 2, -100, 1, 2, -100, -100])
def stacked(output):
    return torch.stack([found["scores"] for found in output])

def loss(output, target):
    each = nn.functional.cross_entropy(stacked(output), target, reduction="none")
    return each.mean()

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    loss(model(x), y).backward()
    optimizer.step()
