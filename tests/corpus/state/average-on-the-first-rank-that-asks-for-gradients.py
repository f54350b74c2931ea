# expect: state/ema-teacher-divergence verified
# shows: Average on the first rank that asks for gradients. A copy for the average asks
#   for gradients, as its original does, and gets none.

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
        self.body, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.body(x)
model = Net()
def wrap(model):
    model.body = DDP(model.body)
    return model
def rank():
    return dist.get_rank() if dist.is_initialized() else 0

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    with torch.no_grad():
        guide = model.teacher(x).softmax(-1)
    output = model(x)
    (loss(output, y) + (output.softmax(-1) - guide).square().sum(1).mean()).backward()
    optimizer.step()
    if rank() == 0:
        with torch.no_grad():
            for a, b in zip(model.teacher.parameters(), model.body.parameters()):
                a.lerp_(b, 0.3)
