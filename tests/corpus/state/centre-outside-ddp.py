# expect: state/ema-teacher-divergence verified
# shows: Centre outside DDP. DDP holds the student alone, so nothing sends the buffer to
#   the ranks.

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
        self.student = nn.Linear(4, 3)
        self.register_buffer("centre", torch.zeros(3))
    def forward(self, x):
        return self.student(x) - self.centre
model = Net()
def wrap(model):
    model.student = DDP(model.student)
    return model

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()

    output = model(x)
    nn.functional.mse_loss(output, torch.eye(3)[y].to(output.dtype)).backward()
    optimizer.step()
    model.centre.lerp_(output.detach().mean(0), 0.5)
